//! The guard: whatever is killed or stopped, in whatever order, no process of
//! the job outlives the lease, and none lives on by itself.
//!
//! `DBLOCK_TEST_ROUNDS` says how often a test hits another moment.

use std::env;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM};
use nix::sys::signal::{kill, killpg};
use nix::unistd::Pid;

use crate::support::family::{A_SECOND, Family};
use crate::support::jobs::{STAMP, perl};
use crate::support::on_every_store;
use crate::support::outcome::status;
use crate::support::place::{Gate, Place};
use crate::support::process::Process;
use crate::support::running::Running;
use crate::support::{pty, wait};

on_every_store!(
    the_job_dies_when_dblock_is_killed,
    the_job_dies_when_the_guard_is_killed,
    d8_a_stopped_dblock_whose_job_has_ended_tells_its_status,
    a_run_leaves_nothing_but_a_daemon,
);

/// A job of six processes or so: its first one, a child that ignores TERM, one
/// in a session of its own, and a daemon whose parents have ended.
const TREE: &str = "echo $$; (trap '' TERM; exec sleep 60) & setsid sleep 60 & \
                    setsid sh -c 'setsid sleep 60 & exit' & exec sleep 60";

/// Processes of [`TREE`] that stay.
const IN_TREE: usize = 4;

/// Seconds of a lease that nobody has to renew during a test.
const LONG: &str = "10m";

fn rounds() -> u64 {
    let text = env::var("DBLOCK_TEST_ROUNDS").unwrap_or_else(|_| "15".to_owned());
    text.parse().expect("DBLOCK_TEST_ROUNDS is a number")
}

/// Lets a time pass that stands for nothing: what comes next is to hit another
/// moment in each round.
fn pass(time: Duration) {
    thread::sleep(time);
}

/// Returns a random time up to a limit.
fn up_to(limit: Duration) -> Duration {
    limit.mul_f64(fastrand::f64())
}

/// Starts [`TREE`], and waits for all of it unless it is to be hit early.
#[track_caller]
fn start(place: &Place, family: &Family, key: &str, settled: bool) -> Running {
    let run = family.of(place.run(key)).args(["--ttl", LONG]);
    let mut running = run.job(TREE).start();
    if settled {
        settle(&mut running, family);
    }
    running
}

/// Waits until all processes of [`TREE`] are there.
#[track_caller]
fn settle(running: &mut Running, family: &Family) {
    running.job();
    wait::until("the job's processes", || {
        let job = family.job();
        // sh, setsid and perl on their way to something else do not count.
        let sleeping = job
            .iter()
            .filter(|it| format!("{it:?}").contains("sleep 60"));
        if sleeping.count() >= IN_TREE && job.len() == IN_TREE {
            Ok(())
        } else {
            Err(format!("{job:?} {}", running.facts()))
        }
    });
}

#[expect(
    clippy::print_stdout,
    reason = "the test harness shows it only if the test fails"
)]
/// Runs [`rounds`] rounds, every second of them with a whole job and the
/// others from the very start of dblock, and each with a random pause.
fn at_any_moment(mut round: impl FnMut(&str, bool, Duration)) {
    for number in 0..rounds() {
        let settled = number % 2 == 0;
        let limit = if settled { 20 } else { 120 };
        let pause = up_to(Duration::from_millis(limit));
        println!("round {number}: settled {settled}, {pause:?}");
        // What was killed leaves its row behind.
        round(&format!("k{number}"), settled, pause);
    }
}

#[test]
fn the_guard_is_between_dblock_and_the_job() {
    let (place, family) = (Place::embedded(), Family::new());
    let mut running = start(&place, &family, "k", false);
    let first = running.job();
    let guard = family.guard(running.pid());
    let dblock = running.process();
    assert_ne!(
        guard.group(),
        dblock.group(),
        "what hits one group would hit both"
    );
    let session = |process: Process| pty::session_of(process.pid());
    assert_eq!(session(guard), session(dblock));
    assert_eq!(first.group(), Some(first.pid()));
    assert_eq!(session(first), session(dblock));
    assert_ne!(guard.group(), first.group());
    running.signal(SIGTERM);
    running.wait();
    family.vanishes();
}

fn the_job_dies_when_dblock_is_killed(place: &Place) {
    let family = Family::new();
    let running = start(place, &family, "k", true);
    running.signal(SIGKILL);
    family.dies_within(A_SECOND);
    running.wait().signal(SIGKILL);
    family.vanishes();
    // Nobody is left who could have deleted it, and it is nobody else's yet.
    assert_eq!(place.rows("k").len(), 1);
}

#[test]
fn the_job_dies_when_dblock_is_killed_at_any_moment() {
    let place = Place::embedded();
    at_any_moment(|key, settled, pause| {
        let family = Family::new();
        let running = start(&place, &family, key, settled);
        pass(pause);
        running.signal(SIGKILL);
        family.dies_within(A_SECOND);
        running.wait().signal(SIGKILL);
        family.vanishes();
    });
}

#[test]
fn the_job_dies_when_the_group_of_dblock_is_killed() {
    let place = Place::embedded();
    at_any_moment(|key, settled, pause| {
        let family = Family::new();
        let running = start(&place, &family, key, settled);
        pass(pause);
        let group = running.process().group().expect("dblock is there");
        killpg(Pid::from_raw(group), SIGKILL).expect("the group can be signalled");
        family.dies_within(A_SECOND);
        running.wait().signal(SIGKILL);
        family.vanishes();
    });
}

fn the_job_dies_when_the_guard_is_killed(place: &Place) {
    let family = Family::new();
    let running = start(place, &family, "k", true);
    family.guard(running.pid()).signal(SIGKILL);
    family.dies_within(A_SECOND);
    running.wait().code(76).says(&["\"k\""]);
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn the_job_dies_when_the_guard_is_killed_at_any_moment() {
    let place = Place::embedded();
    at_any_moment(|key, settled, pause| {
        let family = Family::new();
        let running = start(&place, &family, key, settled);
        let guard = family.guard(running.pid());
        pass(pause);
        guard.signal(SIGKILL);
        family.dies_within(A_SECOND);
        let output = running.wait();
        // Before the job began it is dblock's own fault, after that a loss.
        let allowed = if settled { &[76][..] } else { &[70, 76] };
        assert!(allowed.contains(&status(&output)), "{output:?}");
        family.assert_gone();
        place.assert_free(key);
    });
}

/// Kills one process, and another one 5 ms after the first is dead, in which
/// the second must have had a processor: on a busy machine 5 ms may pass
/// without it, and what did not run at all cannot have reacted.
#[track_caller]
fn kill_in_turn(first: Process, second: Process) {
    const APART: Duration = Duration::from_millis(5);
    let before = Scheduled::of(second);
    first.signal(SIGKILL);
    let mut dead = None;
    wait::until("the second to have had its chance", || {
        if first.is_alive() {
            return Err(format!("{first:?} is alive"));
        }
        let begin = *dead.get_or_insert_with(Instant::now);
        let now = Scheduled::of(second);
        let (Some(before), Some(now)) = (&before, &now) else {
            return Ok(()); // It has ended, or the kernel does not tell.
        };
        let waited = now.waited.saturating_sub(before.waited);
        let ran = now.ran.saturating_sub(before.ran);
        // How long it has been waiting right now is not told.
        let its_turn = ran >= APART || (!ran.is_zero() && !now.runnable);
        if its_turn && begin.elapsed().saturating_sub(waited) >= APART {
            Ok(())
        } else {
            Err(format!("{before:?} {now:?}"))
        }
    });
    if second.is_alive() {
        second.signal(SIGKILL);
    }
}

/// What the scheduler has given to the first thread of a process; see
/// sched-stats in the kernel's documentation.
#[derive(Debug)]
struct Scheduled {
    ran: Duration,
    waited: Duration,
    runnable: bool,
}

impl Scheduled {
    fn of(process: Process) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", process.pid())).ok()?;
        let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
        let (ran, waited) = (numbers.next()?, numbers.next()?);
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
        Some(Self {
            ran: Duration::from_nanos(ran),
            waited: Duration::from_nanos(waited),
            runnable: stat.contains(") R "),
        })
    }
}

#[test]
fn the_job_dies_when_dblock_is_killed_and_then_the_guard() {
    both_are_killed(|dblock, guard| kill_in_turn(dblock, guard));
}

#[test]
fn the_job_dies_when_the_guard_is_killed_and_then_dblock() {
    both_are_killed(|dblock, guard| kill_in_turn(guard, dblock));
}

fn both_are_killed(kill: impl Fn(Process, Process)) {
    let place = Place::embedded();
    for number in 0..rounds() {
        let family = Family::new();
        let running = start(&place, &family, &format!("k{number}"), true);
        let guard = family.guard(running.pid());
        pass(up_to(Duration::from_millis(20)));
        kill(running.process(), guard);
        family.dies_within(A_SECOND);
        running.wait().fails();
        family.vanishes();
    }
}

/// Which of the clocks of [`STAMP`] a store's leases are counted on. The
/// server of the tests is on this host, so that its clock is the host's.
#[derive(Clone, Copy)]
enum StoreClock {
    Boot = 0,
    TimeOfDay = 1,
}

/// Returns the last whole stamp in a file.
#[track_caller]
fn last_stamp(path: &Path, clock: StoreClock) -> i64 {
    let text = fs::read_to_string(path).expect("the job has written");
    let (whole, _) = text.rsplit_once('\n').expect("the job has written a line");
    let line = whole.lines().last().expect("there is a line");
    let word = line.split(' ').nth(clock as usize).expect("two clocks");
    word.parse().expect("a number")
}

/// Stops dblock, and has the job that does not hear TERM killed in time.
fn a_stopped_dblock(place: &Place, clock: StoreClock) {
    let (family, stamps) = (Family::new(), place.file("stamps"));
    let stamping = perl(STAMP, &[stamps.to_str().expect("the path is UTF-8")]);
    let run = family.of(place.run("k")).args(["--ttl", "2s"]);
    let job = format!("echo $$; setsid {stamping} & exec {stamping}");
    let mut running = run.job(&job).start();
    running.job();
    place.wait_for_renewal("k");
    running.signal(SIGSTOP);
    running.process().wait_until_stopped();
    let row = place.row("k");
    family.dies_within(Duration::from_secs(10));
    let last = last_stamp(&stamps, clock);
    assert!(
        last < row.expire_at,
        "the job was alive {} ms after the lease had expired",
        last - row.expire_at
    );
    // It is the deadline that has killed it and nothing else before.
    let early = row.expire_at - last;
    assert!(
        early < 1500,
        "the job was dead {early} ms before the end of the lease"
    );
    wait::until("the lease to expire", || match place.left_ms("k") {
        left if left < 0 => Ok(()),
        left => Err(format!("{left} ms left")),
    });
    assert_eq!(place.row("k"), row, "nobody was there to change it");
    running.signal(SIGCONT);
    running.wait().code(76).says(&["\"k\""]);
    family.assert_gone();
    place.assert_free("k");
}

mod d8_a_stopped_dblock_does_not_keep_its_job_alive {
    use super::{Place, StoreClock, a_stopped_dblock};

    #[test]
    fn embedded() {
        a_stopped_dblock(&Place::embedded(), StoreClock::Boot);
    }

    #[test]
    fn mariadb() {
        a_stopped_dblock(&Place::mariadb(), StoreClock::TimeOfDay);
    }
}

#[test]
fn d8_a_short_stop_of_dblock_is_survived() {
    let (place, family) = (Place::embedded(), Family::new());
    let gate = place.gate();
    let run = family.of(place.run("k")).args(["--ttl", "6s"]);
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = run.job(&job).start();
    running.job();
    for _ in 0..3 {
        running.signal(SIGSTOP);
        running.process().wait_until_stopped();
        running.signal(SIGCONT);
    }
    place.wait_for_renewal("k");
    gate.open();
    running.wait().code(5);
    family.assert_gone();
    place.assert_free("k");
}

/// Keeps a process from doing much, although dblock continues it whenever it
/// finds it stopped: until this is dropped, it is stopped again at once.
struct Held {
    enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Held {
    fn new(process: Process) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&enough);
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) && process.is_alive() {
                // A process that is not reaped yet keeps its number, and
                // between the look and the signal nobody can be given it:
                // numbers go round in hours.
                kill(Pid::from_raw(process.pid()), SIGSTOP).ok();
                thread::sleep(Duration::from_micros(200));
            }
        });
        Self {
            enough,
            thread: Some(thread),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Stops the guard, once or for good.
fn stopped_guards(test: impl Fn(&mut dyn FnMut(Process))) {
    test(&mut |guard| guard.signal(SIGSTOP));
    let mut held = Vec::new();
    test(&mut |guard| held.push(Held::new(guard)));
}

/// Starts a job that ends with status 5 when the gate opens.
fn gated(place: &Place, family: &Family, ttl: &str) -> (Running, Gate) {
    let gate = place.gate();
    let run = family.of(place.run("k")).args(["--ttl", ttl]);
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = run.job(&job).start();
    running.job();
    (running, gate)
}

fn d8_a_stopped_dblock_whose_job_has_ended_tells_its_status(place: &Place) {
    let family = Family::new();
    let (running, gate) = gated(place, &family, "30s");
    running.signal(SIGSTOP);
    running.process().wait_until_stopped();
    gate.open();
    family.dies_within(wait::LIMIT);
    running.signal(SIGCONT);
    running.wait().code(5).quiet();
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn d8_a_job_that_had_ended_before_the_lease_did_keeps_its_status() {
    let (place, family) = (Place::embedded(), Family::new());
    let (running, gate) = gated(&place, &family, "4s");
    running.signal(SIGSTOP);
    running.process().wait_until_stopped();
    let row = place.row("k");
    gate.open();
    family.dies_within(Duration::from_secs(1));
    // The guard kills what lives a margin before the end of the lease.
    assert!(
        place.left_ms("k") > 200,
        "the test was too slow for {row:?}"
    );
    wait::until("the lease to expire", || match place.left_ms("k") {
        left if left < 0 => Ok(()),
        left => Err(format!("{left} ms left")),
    });
    running.signal(SIGCONT);
    running.wait().code(5);
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn a_stopped_guard_does_not_keep_a_lost_job_alive() {
    stopped_guards(|stop| {
        let (place, family) = (Place::embedded(), Family::new());
        let run = family.of(place.run("k")).args(["--ttl", "4s"]);
        let mut running = run.job(TREE).start();
        settle(&mut running, &family);
        stop(family.guard(running.pid()));
        let left = u64::try_from(place.left_ms("k")).expect("the lease is alive");
        place.delete("k");
        family.dies_within(Duration::from_millis(left));
        running.wait().code(76).says(&["\"k\""]);
        family.vanishes();
        place.assert_free("k");
    });
}

#[test]
fn a_stopped_guard_does_not_keep_a_job_alive_that_is_to_be_killed() {
    stopped_guards(|stop| {
        let (place, family) = (Place::embedded(), Family::new());
        let run = family.of(place.run("k")).args(["--kill-after", "500ms"]);
        let mut running = run.job(TREE).start();
        settle(&mut running, &family);
        stop(family.guard(running.pid()));
        running.signal(SIGTERM);
        running.wait().fails().took_at_most(Duration::from_secs(10));
        family.vanishes();
        place.assert_free("k");
    });
}

#[test]
fn a_stopped_guard_does_not_hold_up_the_end() {
    stopped_guards(|stop| {
        let (place, family) = (Place::embedded(), Family::new());
        let (running, gate) = gated(&place, &family, "3s");
        stop(family.guard(running.pid()));
        gate.open();
        // The status is the job's, or that of a guard that does not do its
        // work.
        let output = running.wait();
        assert!([5, 70, 76].contains(&status(&output)), "{output:?}");
        family.vanishes();
        place.assert_free("k");
    });
}

#[test]
fn a_guard_that_was_stopped_knows_of_the_renewals() {
    let (place, family) = (Place::embedded(), Family::new());
    let (running, gate) = gated(&place, &family, "2s");
    let guard = family.guard(running.pid());
    let held = Held::new(guard);
    let row = place.row("k");
    // Longer than the deadline that the guard has heard of.
    wait::until("renewals for longer than the lease", || {
        let now = place.row("k");
        if now.expire_at > row.expire_at + 2000 {
            Ok(())
        } else {
            Err(format!("{row:?} {now:?} {}", running.facts()))
        }
    });
    drop(held);
    guard.signal(SIGCONT);
    place.wait_for_renewal("k");
    running.assert_running();
    assert!(!family.job().is_empty(), "the job was killed");
    gate.open();
    running.wait().code(5);
    family.assert_gone();
    place.assert_free("k");
}

fn a_run_leaves_nothing_but_a_daemon(place: &Place) {
    let family = Family::new();
    let run = family.of(place.run("k"));
    let run = run.job("setsid sleep 60 & echo $!; exit 3").start();
    let output = run
        .wait()
        .code(3)
        .quiet()
        .took_at_most(Duration::from_secs(4));
    assert!(family.own().is_empty(), "left: {:?}", family.own());
    let daemon = Process::printed(output.text());
    let left = family.job();
    assert!(
        left.len() == 1 && left[0].process == daemon,
        "{daemon:?} should be left: {left:?}"
    );
    place.assert_free("k");
}

#[test]
fn c3_no_guard_is_left_without_a_job() {
    let (place, family) = (Place::embedded(), Family::new());
    let run = || family.of(place.run("k"));
    run().args(["--", "/nonexistent/command"]).run().code(127);
    family.assert_gone();
    run().args(["--", "/etc/passwd"]).run().code(126);
    family.assert_gone();
    let mut holder = place.run("k").job("echo $$; exec sleep 60").start();
    holder.job();
    run().args(["--", "true"]).run().code(75);
    family.assert_gone();
    run().args(["--wait", "100ms", "--", "true"]).run().code(75);
    family.assert_gone();
}

#[test]
fn h4_nothing_is_left_of_a_killed_waiter() {
    let (place, family) = (Place::embedded(), Family::new());
    let mut holder = place.run("k").job("echo $$; exec sleep 60").start();
    holder.job();
    let run = family
        .of(place.run("k"))
        .args(["--wait", "1h", "--", "true"]);
    let waiter = run.start();
    place.wait_until_reached_by(&waiter);
    waiter.signal(SIGKILL);
    waiter.wait().signal(SIGKILL);
    family.vanishes();
}

#[test]
fn a_daemon_dies_with_a_job_that_takes_too_long() {
    let (place, family) = (Place::embedded(), Family::new());
    let run = family
        .of(place.run("k"))
        .args(["--timeout", "1s", "--kill-after", "500ms"]);
    let mut running = run.job(TREE).start();
    settle(&mut running, &family);
    running.wait().code(124);
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn a_daemon_dies_with_a_job_that_has_to_be_killed() {
    let (place, family) = (Place::embedded(), Family::new());
    let run = family.of(place.run("k")).args(["--kill-after", "500ms"]);
    let mut running = run.job(&format!("trap '' TERM; {TREE}")).start();
    settle(&mut running, &family);
    running.signal(SIGTERM);
    running.wait().signal(SIGKILL);
    family.assert_gone();
    place.assert_free("k");
}

/// A service manager sends its signal to every process that belongs to the
/// service, and the job must still be able to clean up.
#[test]
fn a2_a_signal_to_everybody_leaves_the_job_its_time() {
    for (name, signal) in [("TERM", SIGTERM), ("INT", SIGINT), ("HUP", SIGHUP)] {
        let (place, family) = (Place::embedded(), Family::new());
        let job = format!(
            "trap 'trap \"\" {name}; sleep 0.5; echo clean; exit 3' {name}; echo $$; \
             while :; do sleep 0.05; done"
        );
        let mut running = family.of(place.run("k")).job(&job).start();
        let job = running.job();
        let guard = family.guard(running.pid());
        for process in [guard, running.process(), job] {
            process.signal(signal);
        }
        let output = running.wait().code(3);
        assert!(output.text().ends_with("\nclean\n"), "{output:?}");
        family.assert_gone();
        place.assert_free("k");
    }
}

/// A job whose first process has ended and has left another one in the group.
fn with_a_leftover(place: &Place, family: &Family) -> Running {
    let run = family.of(place.run("k")).args(["--ttl", LONG]);
    let mut running = run.job("sleep 60 & echo $!; echo $$; exit 3").start();
    let first = running.lines(2)[1].parse().expect("a pid");
    wait::until("the first process to end", || match Process::of(first) {
        Some(process) if process.is_alive() => Err(format!("{process:?} lives")),
        _ => Ok(()),
    });
    running
}

#[test]
fn a12_a_leftover_dies_when_dblock_is_killed() {
    let (place, family) = (Place::embedded(), Family::new());
    let running = with_a_leftover(&place, &family);
    running.signal(SIGKILL);
    family.dies_within(A_SECOND);
    running.wait().signal(SIGKILL);
    family.vanishes();
}

#[test]
fn a12_a_leftover_dies_when_the_guard_is_killed() {
    let (place, family) = (Place::embedded(), Family::new());
    let running = with_a_leftover(&place, &family);
    family.guard(running.pid()).signal(SIGKILL);
    family.dies_within(A_SECOND);
    running.wait().code(76);
    family.assert_gone();
    place.assert_free("k");
}

/// Whoever is killed while dblock is stopped, the job dies at once and not
/// only at the deadline.
#[test]
fn the_job_dies_when_a_stopped_dblock_is_killed() {
    let (place, family) = (Place::embedded(), Family::new());
    let running = start(&place, &family, "k", true);
    running.signal(SIGSTOP);
    running.process().wait_until_stopped();
    running.signal(SIGKILL);
    family.dies_within(A_SECOND);
    running.wait().signal(SIGKILL);
    family.vanishes();
}
