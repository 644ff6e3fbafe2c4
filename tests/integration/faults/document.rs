//! `docs/faults.md`, written from the table.

use std::fmt::Write as _;

use super::table::SECTIONS;
use super::{Act, End, Fault, Left, STATUS, Section, TERMINATED, Times, When};

/// What stands above the tables.
const INTRODUCTION: &str = "\
# What happens on a bad day

<!-- Written from the table in tests/integration/faults/table.rs by
     `BLESS=1 tests/run faults`. A test makes each line happen. -->

Networks lose packets, servers restart, proxies say things of their own. This page
shows what `dblock run` does then: for each fault, in each phase of a run, whether
the job runs, which status dblock ends with, how long that takes, and whether the
lock's row stays behind.

Nothing here is theory. Each cell of each table is one run of dblock against a real
MariaDB, through a proxy that does to one command what the line says. The runs are
made with `--ttl 6s --connect-timeout 3s`, and a job that ends with a status of its
own. It follows from these numbers that a renewal is due after 2 s, that a call is
given up after 1.8 s, and that the job is told to end when no renewal has worked for
4.2 s. With the default of `--ttl 30s` it is 10 s, 9 s and 21 s.

In short:

- Before the grant nothing can be lost. What passes by itself is got over within
  `--connect-timeout`; otherwise no job is started, and the status says why.
- While the job runs one fault is nothing. It is stopped only if no renewal works for
  70 % of the TTL, and then it is dead before anybody else can get the key.
- When the job has ended its status stands. At worst the key stays closed for the rest
  of the TTL.

## What dblock promises, whatever goes wrong

These are checked in every cell:

- The job is started at most once, and only under a lease whose row is in the database.
- The status says what was done: 69, 75 and 78 mean that no job was started.
- The row is not released before the last process of the job has ended.
- If the row stays, the job was dead before that lease expired.
- At most one row stays, and it expires by itself after at most the TTL. Somebody who
  waits for the key gets it then, and at once if no row stays.

What an unlucky moment can cost is time, never exclusion: a job that does not start,
one that is stopped although the server would have kept its lease, or a key that stays
closed for the rest of a TTL.

## How to read the tables

| words | meaning |
|---|---|
| runs | The job ran to its end and dblock ended with its status, as if nothing had happened. The row is gone. |
| no job: 69 | The job was not started: the database could not be reached or used. Trying again may help. |
| no job: 78 | The job was not started, and somebody has to change something first. |
| stopped: 76 | The job was stopped, before its lease ended, because the lease could not be renewed. |
| ended by the signal | The job was not started, and dblock died of SIGTERM, two seconds after it came at the latest. |
| row stays | The row could not be deleted and expires by itself, after at most the TTL; dblock says so if it knows. |
| one call later | One answer was waited for in vain, for 1.8 s at most. |
| two calls later | Releasing was tried again and again for the limits of two calls, 3.6 s, in vain. |
| after `--connect-timeout` | When the time for a first contact was over, or sooner if nothing was left to be tried. |
| after `--wait` | When the time of `--wait` was over. |
| when the server is back | As soon as it answers again. |

*Once* means that the next attempt works, *each time* that every command of the kind
fails and all others work, *for good* that nothing works from then on.
";

/// Returns the whole document.
pub(super) fn text() -> String {
    let mut text = INTRODUCTION.to_owned();
    for section in SECTIONS {
        append(&mut text, section);
    }
    text
}

fn append(text: &mut String, section: &Section) {
    let columns: Vec<_> = section.phases.iter().map(|phase| phase.title()).collect();
    let lines = section.faults.iter().map(line).collect::<String>();
    write!(
        text,
        "\n## {}\n\n{}\n\n| what happens | how often | {} |\n|---|---|{}\n{lines}",
        section.title,
        section.about,
        columns.join(" | "),
        "---|".repeat(columns.len()),
    )
    .expect("a string takes everything");
}

fn line(fault: &Fault) -> String {
    let ends: Vec<_> = fault.ends.iter().map(show).collect();
    let often = match (fault.times, fault.act) {
        (_, Act::BlackHole | Act::Down(None) | Act::DownAfter(None)) => "for good",
        (Times::Once, _) => "once",
        (Times::Always, _) => "each time",
    };
    format!("| {} | {often} | {} |\n", fault.what, ends.join(" | "))
}

fn show(end: &End) -> String {
    let mut words = vec![match (end.starts, end.status) {
        (1, STATUS) => "runs".to_owned(),
        (1, status) => format!("stopped: {status}"),
        (_, TERMINATED) => "ended by the signal".to_owned(),
        (_, status) => format!("no job: {status}"),
    }];
    words.extend(duration(end).map(str::to_owned));
    if end.left == Left::Expiring {
        words.push("row stays".to_owned());
    }
    words.join(", ")
}

fn duration(end: &End) -> Option<&'static str> {
    match end.when {
        When::AtOnce if end.starts == 0 => Some("at once"),
        When::AtOnce | When::LastWord | When::Lease => None,
        When::OneCall => Some("one call later"),
        When::Back => Some("when the server is back"),
        When::Contact => Some("after `--connect-timeout`"),
        When::Patience => Some("after `--wait`"),
        When::TwoCalls => Some("two calls later"),
    }
}
