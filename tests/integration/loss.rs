//! The lease is lost: the job is dead before anybody else can be granted the
//! key, and nothing of the successor's is touched.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGCONT, SIGSTOP};

use crate::support::dblock::Output;
use crate::support::on_every_store;
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::running::Running;
use crate::support::server::Server;
use crate::support::wait;

on_every_store!(
    a1_the_whole_ordinary_tree_dies_when_the_row_is_gone,
    d4_the_job_is_stopped_when_another_owner_has_the_row,
    d4_a_job_that_ignores_term_is_killed,
    d6_a_lost_holder_changes_nothing_of_its_successors,
    d6_a_holder_that_slept_changes_nothing_of_its_successors,
    h3_a_job_that_ends_before_the_loss_is_noticed_keeps_its_status,
);

/// A job of a shell and a child; both print their process ids.
const TREE: &str = "echo $$; sleep 60 & echo $!; wait; :";

/// The same, deaf to TERM.
const DEAF_TREE: &str = "trap '' TERM; echo $$; sleep 60 & echo $!; wait; :";

fn alive(processes: &[Process]) -> Vec<Process> {
    processes
        .iter()
        .copied()
        .filter(|process| process.is_alive())
        .collect()
}

/// Waits for dblock's end and checks that it is 76, that the loss is told in
/// one line, and that the job ended first; returns how long that took.
#[track_caller]
fn lost(running: Running, tree: &[Process]) -> Duration {
    let (output, took) = lost_somehow(running, tree);
    output.one_line(&["\"k\""]);
    took
}

/// The same, but there may have been other things to tell before.
#[track_caller]
fn lost_somehow(running: Running, tree: &[Process]) -> (Output, Duration) {
    let begin = Instant::now();
    let output = running.wait();
    let (took, left) = (begin.elapsed(), alive(tree));
    assert_eq!(left, [], "dblock has ended before its job");
    (output.code(76).says(&["\"k\""]), took)
}

fn a1_the_whole_ordinary_tree_dies_when_the_row_is_gone(place: &Place) {
    let mut running = place.run("k").args(["--ttl", "5s"]).job(TREE).start();
    let tree = running.processes(2);
    let left = u64::try_from(place.left_ms("k")).expect("the lease is alive");
    place.delete("k");
    let took = lost(running, &tree);
    assert!(
        took < Duration::from_millis(left),
        "{took:?}, and {left} ms were left"
    );
    place.assert_free("k");
}

/// With a TTL of 6 s: a third of it until the next renewal, and the grace.
const NOTICED_AND_STOPPED: Duration = Duration::from_millis(2000 + 1500);

fn d4_the_job_is_stopped_when_another_owner_has_the_row(place: &Place) {
    let mut running = place.run("k").args(["--ttl", "6s"]).job(TREE).start();
    let tree = running.processes(2);
    let successor = place.steal("k");
    let took = lost(running, &tree);
    assert!(took < NOTICED_AND_STOPPED, "{took:?}");
    assert_eq!(place.row("k"), successor);
}

fn d4_a_job_that_ignores_term_is_killed(place: &Place) {
    let mut running = place.run("k").args(["--ttl", "6s"]).job(DEAF_TREE).start();
    let tree = running.processes(2);
    let left = u64::try_from(place.left_ms("k")).expect("the lease is alive");
    let successor = place.steal("k");
    let took = lost(running, &tree);
    assert!(
        took < Duration::from_millis(left),
        "{took:?}, and {left} ms were left"
    );
    assert_eq!(place.row("k"), successor);
}

fn d6_a_lost_holder_changes_nothing_of_its_successors(place: &Place) {
    let mut running = place.run("k").args(["--ttl", "4s"]).job(TREE).start();
    let tree = running.processes(2);
    let before = place.row("k");
    let successor = place.steal("k");
    for command in ["release", "renew"] {
        let by_hand = place
            .dblock()
            .args([command, "--key", "k", "--owner", &before.owner]);
        by_hand
            .run()
            .code(77)
            .stdout("")
            .one_line(&["\"k\"", "thief-host"]);
        assert_eq!(place.row("k"), successor, "after {command}");
    }
    lost(running, &tree);
    assert_eq!(place.row("k"), successor);
}

fn d6_a_holder_that_slept_changes_nothing_of_its_successors(place: &Place) {
    let mut first = place.run("k").args(["--ttl", "4s"]).job(DEAF_TREE).start();
    let tree = first.processes(2);
    first.signal(SIGSTOP);
    first.process().wait_until_stopped();
    let gate = place.gate();
    let job = format!("echo $$; {}", gate.wait());
    // The lease runs out, since nobody renews it.
    let mut second = place.run("k").args(["--wait", "20s"]).job(&job).start();
    second.job();
    let successor = place.row("k");
    first.signal(SIGCONT);
    lost_somehow(first, &tree);
    let now = place.row("k");
    assert_eq!((now.owner, now.token), (successor.owner, successor.token));
    gate.open();
    second.wait().code(0).quiet();
    place.assert_free("k");
}

/// Watches the job of `k` die, and checks by the store's own clock that the
/// lease has not expired then. The row must be one that nobody extends.
#[track_caller]
fn assert_dead_before_expiry(place: &Place, tree: &[Process]) {
    let left = wait::until("the job to die", || {
        // In this order: what is dead now was dead when the store is asked.
        let alive = alive(tree);
        let left = place.left_ms("k");
        if alive.is_empty() {
            Ok(left)
        } else {
            Err(format!("{alive:?}, {left} ms left"))
        }
    });
    assert!(
        left > 0,
        "the lease had expired {} ms before the job was dead",
        -left
    );
}

fn h3_a_job_that_ends_before_the_loss_is_noticed_keeps_its_status(place: &Place) {
    let gate = place.gate();
    let mut running = place
        .run("k")
        .job(&format!("echo $$; {}; exit 5", gate.wait()))
        .start();
    running.job();
    let successor = place.steal("k");
    gate.open();
    running.wait().code(5).one_line(&["\"k\""]);
    assert_eq!(place.row("k"), successor);
}

/// Runs a deaf job through a proxy and breaks the network right after a
/// renewal, so that the row has its longest life.
fn the_network_is_lost(lose: impl FnOnce(&Proxy)) {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let run = place
        .run("k")
        .env("DBLOCK_URL", place.database().url_at(proxy.port()));
    let mut running = run.args(["--ttl", "3s"]).job(DEAF_TREE).start();
    let tree = running.processes(2);
    place.wait_for_renewal("k");
    lose(&proxy);
    let before = place.row("k");
    assert_dead_before_expiry(&place, &tree);
    assert_eq!(place.row("k"), before, "nothing has reached the server");
    lost_somehow(running, &tree);
}

#[test]
fn d3_the_job_is_dead_before_the_lease_ends_when_packets_vanish() {
    the_network_is_lost(Proxy::hold);
}

#[test]
fn d3_the_job_is_dead_before_the_lease_ends_when_connections_are_refused() {
    the_network_is_lost(Proxy::refuse);
}

#[test]
fn d2_a_short_cut_of_the_network_is_survived() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let gate = place.gate();
    let run = place
        .run("k")
        .env("DBLOCK_URL", place.database().url_at(proxy.port()));
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = run.args(["--ttl", "6s"]).job(&job).start();
    running.job();
    place.wait_for_renewal("k");
    proxy.refuse();
    let connections = proxy.connections();
    wait::until("dblock to try in vain", || {
        if proxy.connections() > connections {
            Ok(())
        } else {
            Err(running.facts())
        }
    });
    proxy.pass();
    place.wait_for_renewal("k");
    gate.open();
    running.wait().code(5);
    place.assert_free("k");
}

#[test]
fn d2_a_restart_of_the_server_is_survived() {
    let server = Server::start();
    let place = Place::on(&server);
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = place.run("k").args(["--ttl", "12s"]).job(&job).start();
    running.job();
    let token = place.row("k").token;
    server.kill();
    server.start_again();
    place.wait_for_renewal("k");
    gate.open();
    running.wait().code(5);
    place.assert_free("k");

    // Tokens rise over a restart of an empty table, too.
    server.kill();
    server.start_again();
    let run = place
        .run("k")
        .job("echo $DBLOCK_TOKEN")
        .run()
        .code(0)
        .quiet();
    let next: u64 = run.text().trim().parse().expect("a number");
    assert!(next > token, "{next} after {token}");
}
