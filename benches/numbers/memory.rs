//! Resident memory of a dblock that holds a lock and of one that waits.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::report::{Goal, Report};
use crate::support::place::Place;
use crate::support::wait;

/// How long nothing may have grown.
const STEADY: Duration = Duration::from_secs(1);

/// Measures on MariaDB: the driver and its TLS make it the larger of the two.
/// Only one dblock runs at a time, so that it shares its pages with no other.
pub(crate) fn measure(report: &mut Report) {
    let place = Place::mariadb();
    let mut holder = place.run("held").job("echo $$; exec sleep 600").start();
    holder.job();
    rows(report, "holding", holder.pid());
    drop(holder);

    let acquire = ["acquire", "--key", "busy", "--ttl", "600"];
    place.dblock().args(acquire).run().code(0);
    let waiter = place.run("busy").arg("--wait").job("true").start();
    rows(report, "waiting", waiter.pid());
}

fn rows(report: &mut Report, word: &str, pid: u32) {
    let peaks = steady_peaks(pid);
    let mut facts: Vec<_> = peaks
        .iter()
        .map(|(name, kib)| format!("{name} {:.1}", mebibytes(*kib)))
        .collect();
    let sum = peaks.iter().map(|(_, kib)| kib).sum();
    facts.push(format!("sum {:.1}", mebibytes(sum)));
    report.row(
        &format!("memory of a {word} dblock: VmHWM"),
        Goal::Mebibytes(10.0),
        &facts.join(", "),
        mebibytes(peaks[0].1),
    );
    report.row(
        &format!("memory of a {word} dblock with guard and spare: PSS"),
        Goal::Mebibytes(10.0),
        "each page that they share is counted once",
        mebibytes(family(pid).into_iter().map(proportional).sum()),
    );
}

/// Returns name and peak (KiB) of dblock and its helpers, once there are all
/// three and nothing grows any more.
fn steady_peaks(pid: u32) -> Vec<(String, u64)> {
    let look = || -> Vec<_> { family(pid).into_iter().filter_map(peak).collect() };
    wait::until("memory to be steady", || {
        let before = look();
        thread::sleep(STEADY);
        let after = look();
        if before == after && after.len() == 3 {
            Ok(after)
        } else {
            Err(format!("{before:?}, then {after:?}"))
        }
    })
}

/// Returns dblock and what it has forked of itself, without its job.
fn family(dblock: u32) -> Vec<u32> {
    let mut found = vec![dblock];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.unwrap_or_default();
        let own = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        found.extend(own.filter(|&pid| field(pid, "status", "Name:").starts_with("dblock")));
        next += 1;
    }
    found
}

fn peak(pid: u32) -> Option<(String, u64)> {
    let kib = number(&field(pid, "status", "VmHWM:"))?;
    Some((field(pid, "status", "Name:"), kib))
}

/// Returns the proportional set size in KiB: of a page that n processes share,
/// one nth.
fn proportional(pid: u32) -> u64 {
    number(&field(pid, "smaps_rollup", "Pss:")).unwrap_or_default()
}

/// Returns what stands behind a name in a file of the process.
fn field(pid: u32, file: &str, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .map_or(String::new(), |rest| rest.trim().to_owned())
}

fn number(text: &str) -> Option<u64> {
    text.split(' ').next()?.parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "memory of a small program")]
fn mebibytes(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
