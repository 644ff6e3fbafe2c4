//! dblock runs a job on one host at a time: it takes a lock in a database,
//! starts the job, renews the lease, stops the job if the lease is lost, and
//! frees the lock when the last process of the job is gone.
//!
//! Rust programs that want a lock without a job around it use [`client`]:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", folder.path().join("locks.db").display());
//! let locks = dblock::client::Client::open(&url)?;
//! if let Some(lease) = locks.lock("nightly-report")?.acquire()?.held() {
//!     lease.check()?; // before each step: ends here if the lease is lost
//!     lease.release()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The other modules are what the command is made of. They are public so that
//! programs and tests can use them, and may change with each version, except
//! for the words of [`lock`] and the contract of [`store`] as far as [`client`]
//! uses them. ARCHITECTURE.md tells the way of a run through the modules.

pub mod acquisition;
pub mod by_hand;
pub mod child;
pub mod cli;
pub mod client;
pub mod clock;
mod commands;
pub mod config;
pub mod exit;
pub mod guard;
pub mod inbox;
pub mod keeper;
pub mod lease;
pub mod lease_file;
pub mod ledger;
pub mod lock;
pub mod nesting;
pub mod origin;
pub mod output;
pub mod renewal;
pub mod signals;
pub mod store;
pub mod supervise;
pub mod terminal;
pub mod tree;

use std::ffi::OsString;
use std::panic;

use clap::Parser;

use cli::Cli;
use exit::{Exit, Status};
use output::Console;

/// Does what the command line says and returns how the process is to end.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Exit {
    let console = Console::default();
    panic::set_hook(Box::new(move |fault| {
        console.say(&format_args!("a fault of dblock itself: {fault}"));
    }));
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        match Cli::try_parse_from(args) {
            Ok(cli) => commands::carry_out(&cli),
            Err(error) => usage(&error),
        }
    }));
    outcome.unwrap_or(Status::Internal.into())
}

/// Shows help that was asked for, or says in one line what is wrong with the
/// command line.
fn usage(error: &clap::Error) -> Exit {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return match output::print(&text) {
            Ok(()) => Exit::SUCCESS,
            Err(_) => Status::Internal.into(),
        };
    }
    let paragraphs: Vec<String> = text
        .split("\n\n")
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let wrong = paragraphs[0].trim_start_matches("error: ");
    // Of several tips the first is the likeliest; how to pass an option as a
    // value is none for a program whose values are commands to run.
    let tip = paragraphs
        .iter()
        .filter_map(|part| part.strip_prefix("tip: "))
        .filter_map(|tips| tips.split(" tip: ").next())
        .find(|tip| !tip.contains("as a value"))
        .map_or(String::new(), |tip| format!(" ({tip})"));
    let line = format!("{wrong}{tip}; see 'dblock {}--help'", subcommand(&text));
    Console::default().say(&redacted(&line));
    Status::Usage.into()
}

/// Returns the subcommand that the usage line of an error names, with a blank.
fn subcommand(text: &str) -> String {
    let name = text
        .split_once("Usage: dblock ")
        .and_then(|(_, usage)| usage.split_whitespace().next())
        .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
    name.map_or(String::new(), |name| format!("{name} "))
}

/// Hides what stands between `://` and `@`: a URL in the wrong place may have
/// a password in it, and errors repeat what they did not understand.
fn redacted(line: &str) -> String {
    let mut shown = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = behind.rfind('@').unwrap_or(0);
        if end > 0 {
            shown.push_str("***");
        }
        rest = &behind[end..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_in_the_wrong_place_lose_their_login() {
        let line = "unexpected argument 'mysql://u:p w@x@h/d' found";
        assert_eq!(
            redacted(line),
            "unexpected argument 'mysql://***@h/d' found"
        );
        assert_eq!(redacted("a sqlite:x"), "a sqlite:x");
        assert_eq!(redacted("mysql://h/d"), "mysql://h/d");
    }
}
