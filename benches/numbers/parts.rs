//! Programs to compare with that are nowhere to be had: this program plays
//! them, each turn in a process of its own, so that all pay for their start.

use std::env;
use std::os::fd::AsFd as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use dblock::child::JobSpec;
use dblock::clock;
use dblock::guard::{Guard, Report};
use mysql::prelude::Queryable as _;
use mysql::{Conn, OptsBuilder};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::support::PASSWORD;

/// The argument in front of a part.
pub(crate) const FLAG: &str = "--part";

/// A deadline that no turn reaches.
const FAR: Duration = Duration::from_secs(60);

/// Returns the command that plays a part.
pub(crate) fn command(part: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command.arg(FLAG).args(part).env_clear();
    command.env("PATH", "/usr/bin:/bin");
    command
}

/// Plays a part.
pub(crate) fn play(part: &[String]) -> ExitCode {
    let words: Vec<&str> = part.iter().map(String::as_str).collect();
    match words[..] {
        ["plain"] => start_true(),
        ["guarded"] => start_true_guarded(),
        ["minimum", port, database, user] => under_bare_lock(port, database, user),
        _ => panic!("no such part: {words:?}"),
    }
    ExitCode::SUCCESS
}

fn start_true() {
    let status = Command::new("true").status().expect("it can be started");
    assert!(status.success(), "{status}");
}

/// Does what `dblock run` does with its guard and its spare, and nothing else.
fn start_true_guarded() {
    let spec = |inherited| JobSpec {
        command: "true".into(),
        arguments: Vec::new(),
        remove: Vec::new(),
        path: env::var_os("PATH"),
        inherited,
        heir_of: Some(nix::unistd::getpgrp()),
    };
    let mut guard = Guard::fork(spec).expect("there is a process to be had");
    guard.confirm().expect("the guard comes to its post");
    guard.start(Vec::new(), clock::now() + FAR);
    loop {
        let mut socket = [PollFd::new(guard.as_fd(), PollFlags::POLLIN)];
        poll(&mut socket, PollTimeout::NONE).expect("the guard's socket can be waited for");
        let reports = guard.reports();
        assert!(!reports.contains(&Report::Dead), "the guard has died");
        if reports.contains(&Report::Gone) {
            break;
        }
    }
    guard.dismiss();
}

/// The least that a lock in a server takes: one connection, one INSERT and one
/// DELETE, each with its commit, and the job in between.
fn under_bare_lock(port: &str, database: &str, user: &str) {
    let options = OptsBuilder::new()
        .ip_or_hostname(Some("127.0.0.1"))
        .tcp_port(port.parse().expect("a port"))
        .user(Some(user))
        .pass(Some(PASSWORD))
        .db_name(Some(database))
        // Each of these saves round trips, and dblock does the same.
        .prefer_socket(false)
        .max_allowed_packet(Some(16 << 20))
        .stmt_cache_size(0);
    let mut connection = Conn::new(options).expect("the server is there");
    connection
        .query_drop(
            "INSERT INTO dblock_lock (lock_key, owner_id, expire_at, acquired_at, ttl_ms, kind, \
             host, pid, user_name, command) VALUES ('bare', 'me', 0, UTC_TIMESTAMP(3), 30000, \
             'run', 'host', 1, 'user', 'true')",
        )
        .expect("nobody else holds the lock");
    start_true();
    connection
        .query_drop("DELETE FROM dblock_lock WHERE lock_key='bare' AND slot=0 AND owner_id='me'")
        .expect("the row can be deleted");
}
