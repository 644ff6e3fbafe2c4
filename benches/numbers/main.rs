//! The numbers that dblock has to hold, each measured in one run beside what
//! it is compared with, so that a slow or busy machine slows both.
//!
//! `tests/bench` installs what it needs and runs it; `docs/numbers.md` says
//! what is measured how. A report, not a test: it succeeds whatever it finds,
//! unless `--check` is given.

#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark stands outside of the program whose modules the list keeps apart"
)]
#![expect(
    clippy::expect_used,
    reason = "what must not fail in a measurement ends it"
)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the report is what a benchmark is for"
)]

mod contention;
mod etcd;
mod memory;
mod parts;
mod report;
mod short_runs;
#[path = "../../tests/integration/support/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the tests use more of their support than a benchmark does"
)]
mod support;
mod turns;
mod waiting;

use std::env;
use std::process::ExitCode;

use report::Report;

/// A group of rows: the word that selects it, and what measures it.
type Group = (&'static str, fn(&mut Report));

const GROUPS: &[Group] = &[
    ("local", short_runs::local),
    ("server", short_runs::server),
    ("guard", short_runs::guard),
    ("memory", memory::measure),
    ("contention", contention::measure),
    ("hand-off", waiting::hand_off),
    ("crowd", waiting::crowd),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some((parts::FLAG, part)) = arguments
        .split_first()
        .map(|(flag, part)| (flag.as_str(), part))
    {
        return parts::play(part);
    }
    // Cargo adds `--bench`.
    let words: Vec<&String> = arguments.iter().filter(|a| !a.starts_with("--")).collect();
    let mut report = Report::begin();
    for (word, measure) in GROUPS {
        if words.is_empty() || words.iter().any(|wanted| wanted == word) {
            eprintln!("measuring: {word}");
            measure(&mut report);
        }
    }
    report.print();
    let check = arguments.iter().any(|argument| argument == "--check");
    ExitCode::from(u8::from(check && report.is_missed()))
}

/// Returns a number from the environment: how long or how often to measure.
fn setting(name: &str, default: u32) -> u32 {
    env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a whole number: {text:?}"))
    })
}
