//! One file a command, each the hands of what the pure modules decide. Here
//! is only the way from a command to its function, and from an error to its
//! line and status.

mod block;
mod check;
mod force_release;
mod init;
mod lease;
mod nested;
mod obtain;
mod run;
mod status;

use std::time::Duration;

use anyhow::Error;

use crate::by_hand::{give_back, patiently};
use crate::cli::{Cli, Command, StoreArgs};
use crate::config;
use crate::exit::Exit;
use crate::output::{self, Console};
use crate::store::{Limits, Store};

/// Carries out a command and says in one line what went wrong, if anything.
pub(crate) fn carry_out(cli: &Cli) -> Exit {
    let done = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Acquire(args) => lease::acquire(args),
        Command::Renew(args) => lease::renew(args),
        Command::Release(args) => lease::release(args),
        Command::Check(args) => check::check(args),
        Command::Status(args) => status::status(args),
        Command::ForceRelease(args) => force_release::force_release(args),
        Command::Block(args) => block::block(args),
        Command::Unblock(args) => block::unblock(args),
        Command::Init(args) => init::init(args),
        Command::Completions(args) => completions(args.shell),
    };
    done.unwrap_or_else(|error| failed(&error))
}

/// Says what went wrong.
fn failed(error: &Error) -> Exit {
    Console::default().say(&format_args!("{error:#}"));
    Exit::of(error)
}

/// Returns the store that the arguments and the configuration name, for a
/// command that makes a few calls and ends, and the limit for each.
fn open(args: &StoreArgs) -> Result<(Box<dyn Store>, Duration), Error> {
    let settings = config::settings(args)?;
    let limit = settings.connect_timeout;
    let limits = Limits::for_command(limit);
    Ok((settings.endpoint.open(limits), limit))
}

fn console(args: &StoreArgs) -> Console {
    Console {
        quiet: args.quiet,
        verbose: args.verbose,
    }
}

fn completions(shell: clap_complete::Shell) -> Result<Exit, Error> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut crate::cli::command(), "dblock", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(Exit::SUCCESS)
}
