//! The command line: clap's types and nothing else.
//!
//! The comments on the fields are the help texts, and the man pages and
//! completions are made from them. This module must not know stores, files or
//! the environment.

#![expect(
    rustdoc::broken_intra_doc_links,
    reason = "the texts are help for people, and [:PORT] in them is no link"
)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::exit::Status;
use crate::lock::{Key, Owner, SLOTS_MAX, Ttl};

/// Run a job on one host at a time.
///
/// dblock takes a lock in a database, runs a command, renews the lease while
/// the command runs, stops the command if the lease is lost, and frees the
/// lock when the last process of the command has ended.
///
/// The lock lives where --local, --url, the variable DBLOCK_URL or a
/// configuration file says.
#[derive(Debug, Parser)]
#[command(
    name = "dblock",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = false
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command while holding a lock
    Run(RunArgs),
    /// Take a lock by hand and print its owner id
    ///
    /// The lease is held until its TTL ends, unless it is renewed with
    /// 'dblock renew' or given back with 'dblock release'. Nothing renews it
    /// by itself. Standard output has the owner id and nothing else.
    Acquire(AcquireArgs),
    /// Extend a lease that was taken by hand
    ///
    /// A lease that has expired is not revived, even if nobody has taken the
    /// lock over.
    Renew(RenewArgs),
    /// Give a lease back
    Release(ReleaseArgs),
    /// Ask whether a lease is still held
    ///
    /// Without --key and --owner it is about the lease of the 'dblock run' that
    /// it is called under, and answers from what that dblock knows, without the
    /// network. With them, or with --url or --local, it asks the store.
    Check(CheckArgs),
    /// Show who holds which locks
    ///
    /// With keys it exits with 0 if every one of them is held, and with 77 if
    /// one is free.
    Status(StatusArgs),
    /// Take a lock away from its holder
    ///
    /// Shows the holder and asks before it deletes the row. A job that still
    /// runs under the lock is stopped by its own dblock at the next renewal;
    /// until then somebody else may be granted the lock.
    ForceRelease(ForceReleaseArgs),
    /// Refuse new grants of a key, for maintenance
    ///
    /// Who holds the key keeps it. Everybody else finds it busy, with the
    /// reason, until 'dblock unblock' or the end of --for. Repeating it changes
    /// the reason and the end.
    Block(BlockArgs),
    /// Allow grants of a blocked key again
    Unblock(UnblockArgs),
    /// Create the tables, or check that they are right
    ///
    /// May be repeated, also by many at once. Repeat it after the tables were
    /// truncated or restored from a dump: it lifts the counter of fencing
    /// tokens above all earlier ones.
    Init(InitArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
}

/// Where the lock lives, and how much is told.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Store")]
pub struct StoreArgs {
    /// Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH
    #[arg(long, value_name = "URL", conflicts_with = "local")]
    pub url: Option<OsString>,
    /// Use a file of this user; it excludes this user's processes on this host only
    #[arg(long)]
    pub local: bool,
    /// Read this configuration file instead of the usual ones
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Time for a connection, with all its phases, while no lease is held; default: 5s
    #[arg(long, value_name = "D", value_parser = positive_duration)]
    pub connect_timeout: Option<Duration>,
    /// Say nothing about a busy key
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Tell what happens
    #[arg(short, long)]
    pub verbose: bool,
}

/// Which lock, and how long to wait for it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Lock")]
pub struct LockArgs {
    /// The lock's key: 1 to 255 bytes of UTF-8
    #[arg(short, long, value_name = "KEY", value_parser = key)]
    pub key: Key,
    /// Length of the lease, 1s to 30d; a bare number is seconds
    #[arg(short, long, value_name = "D", default_value = "30s", value_parser = ttl)]
    pub ttl: Ttl,
    /// Give up at once if the key is busy (this is the default)
    #[arg(short, long, conflicts_with = "wait")]
    pub no_wait: bool,
    /// Wait up to D if the key is busy; without D, for ever
    #[arg(short, long, value_name = "D", num_args = 0..=1, value_parser = duration)]
    pub wait: Option<Option<Duration>>,
    /// Exit with this status if the key is busy
    #[arg(short = 'E', long, value_name = "N", default_value_t = Status::Busy.code(), value_parser = exit_status)]
    pub busy_exit: u8,
    /// Let N holders have the key at once; all who use the key must say the same
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = slots)]
    pub slots: u16,
    /// With --slots, take only the slot that VALUE is hashed to
    #[arg(long, value_name = "VALUE", requires = "slots")]
    pub slot_by: Option<String>,
    /// Keep the key closed for at least D after the grant, even if the job ends sooner
    #[arg(long, value_name = "D", default_value = "0s", value_parser = up_to_a_month)]
    pub at_least: Duration,
    /// Skip if a run with this option was granted less than D ago and succeeded
    #[arg(long, value_name = "D", value_parser = up_to_a_year)]
    pub once_per: Option<Duration>,
    /// If the lease is lost, let nobody have the key for a further D
    #[arg(long, value_name = "D", default_value = "0s", value_parser = up_to_a_month)]
    pub lock_delay: Duration,
    /// How to learn that the key is free: woken by the server if possible, or by looking
    #[arg(long, value_name = "HOW", value_enum, default_value_t = WakeArg::Auto)]
    pub wake: WakeArg,
    /// A text that status shows, such as the address of a CI job
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

/// How a waiter learns that the key is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WakeArg {
    /// Sleep in the server's queue where there is one
    Auto,
    /// Look now and then
    Poll,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub lock: LockArgs,
    /// Kill the job D after it was asked to end; default: a quarter of the TTL, at most 10s
    #[arg(long, value_name = "D", value_parser = duration, help_heading = "Job")]
    pub kill_after: Option<Duration>,
    /// End the job if it takes longer than D; status 124
    #[arg(long, value_name = "D", value_parser = positive_duration, help_heading = "Job")]
    pub timeout: Option<Duration>,
    /// What to do with processes that the job leaves in its process group when its first process ends
    #[arg(long, value_name = "HOW", value_enum, default_value_t = LeftoversArg::Wait, help_heading = "Job")]
    pub leftovers: LeftoversArg,
    /// If the job that this runs in holds the key, run the command under that lease
    #[arg(long, help_heading = "Job")]
    pub reentrant: bool,
    /// Write one JSON object about the run to FILE
    #[arg(long, value_name = "FILE", help_heading = "Job")]
    pub report: Option<PathBuf>,
    /// Leave the variables with dblock's credentials in the job's environment
    #[arg(long, help_heading = "Job")]
    pub pass_credentials: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
    /// The command and its arguments; everything from here on is the job's
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "COMMAND",
        help_heading = "Job"
    )]
    pub command: Vec<OsString>,
}

/// What to do with processes that the job leaves in its own process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LeftoversArg {
    /// Keep the lock until they end
    Wait,
    /// End them
    Kill,
    /// Free the lock and let them be
    Leave,
}

/// Arguments of `acquire`.
#[derive(Debug, Args)]
pub struct AcquireArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub lock: LockArgs,
    /// Print a JSON object instead of the owner id
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
}

/// Which lease, by hand.
#[derive(Debug, Clone, Args)]
pub struct LeaseArgs {
    /// The lock's key
    #[arg(short, long, value_name = "KEY", value_parser = key)]
    pub key: Key,
    /// The owner id that acquire printed
    #[arg(short, long, value_name = "ID")]
    pub owner: Owner,
}

/// Arguments of `renew`.
#[derive(Debug, Args)]
pub struct RenewArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub lease: LeaseArgs,
    /// New length of the lease from now on, 1s to 30d; default: as before
    #[arg(short, long, value_name = "D", value_parser = ttl)]
    pub ttl: Option<Ttl>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
}

/// Arguments of `release`.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub lease: LeaseArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The lock's key; default: that of the job it is called in
    #[arg(short, long, value_name = "KEY", value_parser = key, requires = "owner")]
    pub key: Option<Key>,
    /// The owner id; default: that of the job it is called in
    #[arg(short, long, value_name = "ID", requires = "key")]
    pub owner: Option<Owner>,
    /// Answer no if less than D of the lease is left
    #[arg(long, value_name = "D", value_parser = duration)]
    pub min_left: Option<Duration>,
    /// If it is held, print the SQL statement that fails in a transaction unless it still is
    #[arg(long)]
    pub print_sql: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show these keys only
    #[arg(value_name = "KEY", value_parser = key)]
    pub keys: Vec<Key>,
    /// Show this key only; may be repeated
    #[arg(short = 'k', long = "key", value_name = "KEY", value_parser = key)]
    pub more_keys: Vec<Key>,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
    /// Show it again every second until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
}

/// Arguments of `force-release`.
#[derive(Debug, Args)]
pub struct ForceReleaseArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub key: KeyArgs,
    /// Only the holder of this slot
    #[arg(long, value_name = "N")]
    pub slot: Option<u16>,
    /// Only this holder, so that a newer one cannot be hit
    #[arg(short, long, value_name = "ID")]
    pub owner: Option<Owner>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
}

/// Arguments of `block`.
#[derive(Debug, Args)]
pub struct BlockArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub key: KeyArgs,
    /// End by itself after D; without it, with 'dblock unblock' only
    #[arg(long = "for", value_name = "D", value_parser = up_to_a_year)]
    pub length: Option<Duration>,
    /// Why, for those who find the key busy
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
}

/// Arguments of `unblock`.
#[derive(Debug, Args)]
pub struct UnblockArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub key: KeyArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
}

/// The one key of an operator's command, as an argument or as an option.
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The lock's key
    #[arg(value_name = "KEY", value_parser = key, required_unless_present = "key_option")]
    pub key: Option<Key>,
    /// The lock's key, as an option
    #[arg(short, long = "key", id = "key_option", value_name = "KEY", value_parser = key, conflicts_with = "key")]
    pub key_option: Option<Key>,
}

impl KeyArgs {
    /// Returns the key, which clap has made sure of.
    #[must_use]
    pub fn get(&self) -> Option<&Key> {
        self.key.as_ref().or(self.key_option.as_ref())
    }
}

/// Arguments of `init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Print the statements and the least grants instead of running them
    #[arg(long)]
    pub print_sql: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take the text as the command's")]
    pub store: StoreArgs,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Returns the whole command line for man pages, completions and errors.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

fn key(text: &str) -> Result<Key, crate::lock::KeyError> {
    Key::new(text)
}

fn exit_status(text: &str) -> Result<u8, String> {
    text.parse()
        .map_err(|_| "not a number from 0 to 255".to_owned())
}

fn slots(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|slots| (1..=SLOTS_MAX).contains(slots))
        .ok_or_else(|| format!("not a number from 1 to {SLOTS_MAX}"))
}

fn up_to_a_month(text: &str) -> Result<Duration, String> {
    up_to(30, text)
}

fn up_to_a_year(text: &str) -> Result<Duration, String> {
    positive_duration(text).and_then(|_| up_to(366, text))
}

fn up_to(days: u64, text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    if length > Duration::from_secs(days * 24 * 3600) {
        return Err(format!("must be at most {days}d"));
    }
    Ok(length)
}

fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(duration(text)?).map_err(|error| error.to_string())
}

/// Reads a duration as [`duration`] does, and refuses one of no length.
///
/// # Errors
///
/// Returns what is wrong, and what would be right.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    if length.is_zero() {
        return Err("must be more than 0s".to_owned());
    }
    Ok(length)
}

/// Reads a duration such as `10s`, `1m 30s` or `500ms`. A bare number is
/// seconds, with a fraction if one likes, as for `flock -w`.
///
/// # Errors
///
/// Returns what is wrong, and what would be right.
pub fn duration(text: &str) -> Result<Duration, String> {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let read = if is_number {
        text.parse()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        humantime::parse_duration(text).ok()
    };
    read.ok_or_else(|| "not a duration, such as 10s, '1m 30s' or 500ms".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn durations() {
        let millis = |text| duration(text).map(|d| d.as_millis());
        assert_eq!(millis("10"), Ok(10_000));
        assert_eq!(millis("1.5"), Ok(1500));
        assert_eq!(millis("0"), Ok(0));
        assert_eq!(millis("1m 30s"), Ok(90_000));
        assert_eq!(millis("500ms"), Ok(500));
        for text in [
            "",
            " ",
            "-1",
            "-1s",
            ".",
            "1.2.3",
            "10S",
            "s",
            "1e3",
            "inf",
            "999999999999999999999h",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_follows_the_command_is_the_jobs() {
        let parse = |line: &str| {
            Cli::try_parse_from(line.split(' ')).map(|cli| match cli.command {
                Command::Run(run) => (run.lock.key.to_string(), run.command),
                other => panic!("{other:?}"),
            })
        };
        for line in [
            "dblock run --key k -- prog -v --key other --version",
            "dblock run --key k prog -v --key other --version",
        ] {
            let (key, command) = parse(line).expect(line);
            assert_eq!(key, "k");
            assert_eq!(command, ["prog", "-v", "--key", "other", "--version"]);
        }
        assert!(parse("dblock run --key k --").is_err());
        assert!(parse("dblock run --key -x -- true").is_err());
        assert!(parse("dblock run --key=-- -- true").is_ok());
        assert!(parse("dblock run -k k -w -- true").is_ok());
        assert!(parse("dblock run -k k -w true").is_err());
        assert!(parse("dblock run -k k -w 3 true").is_ok());
        assert!(parse("dblock run -k k -w -n -- true").is_err());
    }
}
