//! A job that is stuck in the kernel, as on a network file system whose server
//! is gone: SIGKILL does not end it. It keeps the lock as long as there is one.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGKILL, SIGTERM};

use crate::support::dblock::Dblock;
use crate::support::family::Family;
use crate::support::frozen::{Frozen, wait_until_stuck};
use crate::support::jobs::quoted;
use crate::support::on_every_store;
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::running::Running;
use crate::support::users::skipped;
use crate::support::wait;

on_every_store!(
    a_stuck_job_keeps_the_lock_until_it_is_gone,
    a_stuck_job_does_not_keep_dblock_from_telling_of_a_loss,
    a_stuck_job_dies_when_it_can_after_dblock_was_killed,
);

/// Starts a job of a shell and a child that is stuck, and returns both.
#[track_caller]
fn start(run: Dblock, family: &Family, frozen: &Frozen) -> (Running, [Process; 2]) {
    let file = frozen.file();
    let write = format!("echo >{}", quoted(file.to_str().expect("UTF-8")));
    let job = format!("sh -c {} & echo $!; echo $$; exec sleep 60", quoted(&write));
    let run = family.of(run).args(["--ttl", "4s", "--kill-after", "1s"]);
    let mut running = run.job(&job).start();
    let processes = running.processes(2);
    wait_until_stuck(processes[0]);
    (running, [processes[0], processes[1]])
}

#[track_caller]
fn wait_for_the_end_of(process: Process) {
    wait::until("the rest of the job to die", || {
        if process.is_alive() {
            Err(format!("{process:?} lives"))
        } else {
            Ok(())
        }
    });
}

/// Tells whether the text holds the number as a word of its own.
fn names(text: &str, process: Process) -> bool {
    let number = process.pid().to_string();
    let mut words = text.split(|c: char| !c.is_ascii_digit());
    words.any(|word| word == number)
}

/// Returns what dblock has said so far on standard error.
fn said(running: &Running) -> String {
    let facts = running.facts();
    let said = facts.split_once("--- stderr\n");
    said.map_or_else(String::new, |(_, said)| said.to_owned())
}

fn a_stuck_job_keeps_the_lock_until_it_is_gone(place: &Place) {
    let family = Family::new();
    let mut frozen = match Frozen::new() {
        Ok(frozen) => frozen,
        Err(why) => return skipped(&why),
    };
    let (running, [stuck, shell]) = start(place.run("k"), &family, &frozen);
    let before = place.row("k");
    running.signal(SIGTERM);
    wait_for_the_end_of(shell);
    wait::until("a line that names what cannot be killed", || {
        let said = said(&running);
        if names(&said, stuck) {
            Ok(())
        } else {
            Err(running.facts())
        }
    });
    // Longer than a lease.
    for _ in 0..4 {
        place.wait_for_renewal("k");
    }
    let after = place.row("k");
    assert_eq!((after.owner, after.token), (before.owner, before.token));
    assert!(stuck.is_alive());
    running.assert_running();
    let told = said(&running);
    assert_eq!(told.matches(&stuck.pid().to_string()).count(), 1, "{told}");
    place.run("k").args(["--", "true"]).run().code(75);
    frozen.thaw();
    running.wait().signal(SIGTERM);
    family.assert_gone();
    place.assert_free("k");
}

fn a_stuck_job_does_not_keep_dblock_from_telling_of_a_loss(place: &Place) {
    let family = Family::new();
    let mut frozen = match Frozen::new() {
        Ok(frozen) => frozen,
        Err(why) => return skipped(&why),
    };
    let (running, [stuck, shell]) = start(place.run("k"), &family, &frozen);
    place.delete("k");
    wait_for_the_end_of(shell);
    let killed = Instant::now();
    let output = running.wait().code(76).says(&["\"k\""]);
    // Five seconds after the first kill, and what a busy machine adds.
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(took > Duration::from_secs(3), "{took:?}");
    assert!(stuck.is_alive());
    assert!(names(&output.stderr, stuck), "{}", output.stderr);
    assert!(!names(&output.stderr, shell), "{}", output.stderr);
    place.assert_free("k");
    frozen.thaw();
    family.vanishes();
}

/// The guard ends with the job: what could still be let go on by whoever thaws
/// the file system is never alone.
fn a_stuck_job_dies_when_it_can_after_dblock_was_killed(place: &Place) {
    let family = Family::new();
    let mut frozen = match Frozen::new() {
        Ok(frozen) => frozen,
        Err(why) => return skipped(&why),
    };
    let (running, [stuck, shell]) = start(place.run("k"), &family, &frozen);
    running.signal(SIGKILL);
    running.wait().signal(SIGKILL);
    wait_for_the_end_of(shell);
    assert!(stuck.is_alive());
    frozen.thaw();
    family.vanishes();
}

/// The job is lost when the database cannot be reached in time. If it then can
/// be, and nobody else has taken the key, the lease is kept for what is left.
#[test]
fn a_stuck_job_keeps_the_lock_when_the_database_is_back() {
    let (place, family) = (Place::mariadb(), Family::new());
    let mut frozen = match Frozen::new() {
        Ok(frozen) => frozen,
        Err(why) => return skipped(&why),
    };
    let proxy = Proxy::start(place.database().server().port());
    let url = place.database().url_at(proxy.port());
    let run = place.run("k").env("DBLOCK_URL", url);
    let (running, [stuck, shell]) = start(run, &family, &frozen);
    let before = place.row("k");
    proxy.refuse();
    wait_for_the_end_of(shell);
    proxy.pass();
    // Longer than a lost run waits for what it cannot kill.
    for _ in 0..5 {
        place.wait_for_renewal("k");
    }
    let after = place.row("k");
    assert_eq!((after.owner, after.token), (before.owner, before.token));
    running.assert_running();
    assert!(names(&said(&running), stuck), "{}", running.facts());
    place.run("k").args(["--", "true"]).run().code(75);
    frozen.thaw();
    running.wait().code(76).says(&["\"k\""]);
    family.vanishes();
    place.assert_free("k");
}
