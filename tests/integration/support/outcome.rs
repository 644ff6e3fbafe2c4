//! Ends of which more than one is right.

use super::dblock::Output;

/// Returns the status as a shell shows it: 128 and the number of a signal.
#[track_caller]
pub(crate) fn status(output: &Output) -> i32 {
    // What std::process::ExitStatus shows of itself is the only part of an
    // outcome that can be looked at without an expectation.
    let shown = format!("{output:?}");
    let status = shown.split_once("unix_wait_status(");
    let number = status.and_then(|(_, rest)| rest.split_once(')')?.0.parse::<i32>().ok());
    let number = number.unwrap_or_else(|| panic!("no status in {shown}"));
    match number & 0x7f {
        0 => number >> 8,
        signal => 128 + signal,
    }
}
