//! Whole processes around a job that does nothing: what a lock costs a job.

use std::process::Command;

use crate::etcd::Etcd;
use crate::report::{Goal, Report};
use crate::support::database::Database;
use crate::support::dblock::PROGRAM;
use crate::support::server::Server;
use crate::support::{PASSWORD, PASSWORD_VARIABLE, janitor};
use crate::{parts, setting, turns};

fn count() -> u32 {
    setting("DBLOCK_BENCH_TURNS", 300).max(1)
}

/// Returns a command without an environment but for `PATH`.
fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    command.env("PATH", "/usr/bin:/bin");
    command
}

/// `dblock run` on the embedded store, as with `--local` but in a file of the
/// benchmark's own, against `flock`.
pub(crate) fn local(report: &mut Report) {
    let files = janitor::directory();
    let url = format!("sqlite:{}", files.path().join("locks.db").display());
    let lock = files.path().join("lock").display().to_string();
    let dblock = command(PROGRAM, &["run", "--url", &url, "--key", "k", "--", "true"]);
    let flock = command("flock", &[&lock, "true"]);
    let taken = turns::take(vec![dblock, flock], count());
    report.row(
        "dblock run --local -- true / flock FILE true",
        Goal::Times(3.0),
        &format!("{} / {}", taken[0], taken[1]),
        taken[0].median() / taken[1].median(),
    );
}

/// `dblock run` on a MariaDB against the bare minimum, and against etcd.
pub(crate) fn server(report: &mut Report) {
    let server = Server::shared();
    let database = Database::new(server);
    let mut dblock = command(PROGRAM, &["run", "--key", "k", "--", "true"]);
    dblock
        .env("DBLOCK_URL", database.url())
        .env(PASSWORD_VARIABLE, PASSWORD);
    let port = server.port().to_string();
    let minimum = parts::command(&["minimum", &port, database.name(), database.user()]);
    let mut programs = vec![dblock, minimum];
    let etcd = Etcd::start();
    if let Ok(etcd) = &etcd {
        programs.push(etcd.lock("k", "true"));
    }
    let taken = turns::take(programs, count());
    report.row(
        "dblock run -- true / bare minimum (MariaDB)",
        Goal::Times(1.5),
        &format!("{} / {}", taken[0], taken[1]),
        taken[0].median() / taken[1].median(),
    );
    let what = "dblock run -- true (MariaDB) / etcdctl lock K true";
    match &etcd {
        Ok(_) => report.row(
            what,
            Goal::Times(1.0),
            &format!("{} / {}", taken[0], taken[2]),
            taken[0].median() / taken[2].median(),
        ),
        Err(why) => report.skip(what, Goal::Times(1.0), why),
    }
}

/// A job under guard and spare against the same job alone, both started by the
/// same program.
pub(crate) fn guard(report: &mut Report) {
    let programs = vec![parts::command(&["guarded"]), parts::command(&["plain"])];
    let taken = turns::take(programs, count());
    report.row(
        "guard and spare: true under them - true alone",
        Goal::Millis(1.0),
        &format!("{} - {}", taken[0], taken[1]),
        taken[0].median() - taken[1].median(),
    );
}
