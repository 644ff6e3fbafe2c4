//! The job is its process tree: also what has left the group, what is stopped,
//! what does not listen, and what comes and goes.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{
    SIGALRM, SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};

use crate::support::family::{Family, zombies_of};
use crate::support::jobs::{CHAIN, COUNTER, HEADLESS, HOPPER, STAMP, ZOMBIE_KEEPER, perl, quoted};
use crate::support::on_every_store;
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::running::Running;
use crate::support::users::{as_a_user, set_user_id_root, skipped};
use crate::support::wait;

on_every_store!(
    a4_what_left_the_session_dies_on_a_loss,
    a4_what_left_the_session_hears_of_a_stop,
    a12_leftovers_are_waited_for_and_named,
    a12_leftovers_are_killed,
    a12_leftovers_are_left,
);

/// Starts a job with a short lease.
#[track_caller]
fn start(place: &Place, family: &Family, job: &str) -> Running {
    let run = family.of(place.run("k")).args(["--ttl", "4s"]);
    run.job(job).start()
}

/// Waits until the job has at least this many processes.
#[track_caller]
fn wait_for_processes(running: &Running, family: &Family, count: usize) {
    wait::until("the job's processes", || {
        let job = family.job();
        if job.len() >= count {
            Ok(())
        } else {
            Err(format!("{job:?} {}", running.facts()))
        }
    });
}

/// Takes the lease away, and checks that all of the job is dead before dblock
/// ends, and before the lease would have.
#[track_caller]
fn assert_all_dies_on_a_loss(place: &Place, running: Running, family: &Family) {
    let left = u64::try_from(place.left_ms("k")).expect("the lease is alive");
    place.delete("k");
    let begin = Instant::now();
    let output = running.wait();
    family.assert_dead();
    let took = begin.elapsed();
    assert!(
        took < Duration::from_millis(left),
        "{took:?}, and {left} ms were left"
    );
    output.code(76).says(&["\"k\""]);
    family.assert_gone();
    place.assert_free("k");
}

fn a4_what_left_the_session_dies_on_a_loss(place: &Place) {
    let family = Family::new();
    let job = "setsid sleep 61 & setsid sh -c 'setsid sleep 62 & exit' & exec sleep 60";
    let running = start(place, &family, job);
    wait_for_processes(&running, &family, 3);
    assert_all_dies_on_a_loss(place, running, &family);
}

fn a4_what_left_the_session_hears_of_a_stop(place: &Place) {
    let family = Family::new();
    let heard = place.file("heard");
    let listener = format!(
        "trap 'echo heard >>{}; exit' TERM; echo $$; while :; do sleep 0.05; done",
        quoted(heard.to_str().expect("the path is UTF-8"))
    );
    let job = format!("setsid sh -c {} & exec sleep 60", quoted(&listener));
    let mut running = start(place, &family, &job);
    running.job();
    running.signal(SIGTERM);
    running.wait().signal(SIGTERM);
    family.dies_within(wait::LIMIT);
    assert_eq!(fs::read_to_string(heard).expect("TERM arrived"), "heard\n");
    place.assert_free("k");
}

#[test]
fn a4_nothing_that_ignores_term_survives_a_loss() {
    let (place, family) = (Place::embedded(), Family::new());
    let job = "trap '' TERM HUP INT QUIT; setsid sleep 61 & \
               setsid sh -c 'setsid sleep 62 & exit' & sleep 63 & exec sleep 60";
    let running = start(&place, &family, job);
    wait_for_processes(&running, &family, 4);
    assert_all_dies_on_a_loss(&place, running, &family);
}

#[test]
fn a4_a_job_that_hops_from_session_to_session_dies_on_a_loss() {
    let (place, family) = (Place::embedded(), Family::new());
    let hopper = perl(HOPPER, &[]);
    let job = format!("{hopper} & {hopper} & {hopper} & exec {hopper}");
    // The first process hops away, too, and with that the job has ended, unless
    // another one stays in the group.
    let job = format!("({job}) & trap '' TERM; echo $$; while :; do sleep 1; done");
    let mut running = start(&place, &family, &job);
    running.job();
    wait_for_processes(&running, &family, 4);
    assert_all_dies_on_a_loss(&place, running, &family);
}

#[test]
fn a4_a_deep_chain_dies_on_a_loss() {
    let (place, family) = (Place::embedded(), Family::new());
    let end = place.file("end of the chain");
    let chain = perl(CHAIN, &["50", end.to_str().expect("the path is UTF-8")]);
    let running = start(&place, &family, &format!("exec {chain}"));
    wait::until("the chain to be complete", || {
        end.exists().then_some(()).ok_or_else(|| running.facts())
    });
    assert_eq!(family.job().len(), 50);
    assert_all_dies_on_a_loss(&place, running, &family);
}

#[test]
fn a9_a_stopped_process_outside_of_the_group_hears_term() {
    let (place, family) = (Place::embedded(), Family::new());
    let listener = "trap 'echo bye; exit' TERM; echo $$; while :; do sleep 0.05; done";
    let job = format!("setsid sh -c {} & exec sleep 60", quoted(listener));
    let mut running = start(&place, &family, &job);
    let listening = running.job();
    listening.signal(SIGSTOP);
    listening.wait_until_stopped();
    place.delete("k");
    let output = running.wait().code(76);
    family.assert_gone();
    assert!(output.text().ends_with("\nbye\n"), "{output:?}");
}

#[test]
fn a9_a_stopped_tree_that_ignores_term_dies_on_a_loss() {
    let (place, family) = (Place::embedded(), Family::new());
    let job = "trap '' TERM; echo $$; setsid sleep 61 & echo $!; sleep 62 & echo $!; wait";
    let mut running = start(&place, &family, job);
    for process in running.processes(3) {
        process.signal(SIGSTOP);
        process.wait_until_stopped();
    }
    assert_all_dies_on_a_loss(&place, running, &family);
}

/// Waits until the first process of a job has ended.
#[track_caller]
fn wait_for_the_end_of(pid: &str) {
    let pid = pid.parse().expect("a pid");
    wait::until("the first process to end", || match Process::of(pid) {
        Some(process) if process.is_alive() => Err(format!("{process:?} lives")),
        _ => Ok(()),
    });
}

fn a12_leftovers_are_waited_for_and_named(place: &Place) {
    for option in [&[][..], &["--leftovers", "wait"]] {
        let (family, gate) = (Family::new(), place.gate());
        let job = format!(
            "(exec sh -c {}) & echo $!; echo $$; exit 3",
            quoted(&gate.wait())
        );
        let mut running = family.of(place.run("k")).args(option).job(&job).start();
        let begin = Instant::now();
        let lines = running.lines(2);
        wait_for_the_end_of(&lines[1]);
        wait::until("a line that names what is left", || {
            let facts = running.facts();
            let said = facts
                .split_once("--- stderr\n")
                .map_or("", |(_, said)| said);
            let words: Vec<_> = said.split(|c: char| !c.is_ascii_digit()).collect();
            if words.contains(&lines[0].as_str()) {
                Ok(())
            } else {
                Err(facts)
            }
        });
        let took = begin.elapsed();
        assert!(
            took >= Duration::from_secs(4),
            "told after {took:?} already"
        );
        place.run("k").args(["--", "true"]).run().code(75);
        gate.open();
        running.wait().code(3).one_line(&["\"k\"", &lines[0]]);
        family.assert_gone();
        place.assert_free("k");
    }
}

fn a12_leftovers_are_killed(place: &Place) {
    for deaf in ["", "trap '' TERM;"] {
        let family = Family::new();
        let run = family
            .of(place.run("k"))
            .args(["--leftovers", "kill", "--kill-after", "1s"]);
        let job = format!("{deaf} sleep 60 & exit 3");
        let output = run.job(&job).run();
        family.assert_gone();
        output.code(3).took_at_most(Duration::from_secs(5));
        place.assert_free("k");
    }
}

fn a12_leftovers_are_left(place: &Place) {
    let family = Family::new();
    let run = family.of(place.run("k")).args(["--leftovers", "leave"]);
    let output = run.job("sleep 60 & echo $!; exit 3").run().code(3);
    let left = family.all();
    let output = output.took_at_most(Duration::from_secs(5));
    let leftover = Process::printed(output.text());
    assert!(
        left.len() == 1 && left[0].process == leftover,
        "{leftover:?} should be left: {left:?}"
    );
    place.assert_free("k");
}

#[test]
fn a12_leftovers_that_are_to_be_left_die_on_a_loss() {
    let (place, family) = (Place::embedded(), Family::new());
    let run = family
        .of(place.run("k"))
        .args(["--ttl", "4s", "--leftovers", "leave"]);
    let running = run
        .job("setsid sleep 60 & sleep 61 & exec sleep 62")
        .start();
    wait_for_processes(&running, &family, 3);
    assert_all_dies_on_a_loss(&place, running, &family);
}

#[test]
fn a12_a_leftover_dies_on_a_loss() {
    let (place, family) = (Place::embedded(), Family::new());
    let mut running = start(
        &place,
        &family,
        "sleep 60 & setsid sleep 61 & echo $$; exit 3",
    );
    let first = running.lines(1).remove(0);
    wait_for_the_end_of(&first);
    place.wait_for_renewal("k");
    assert_all_dies_on_a_loss(&place, running, &family);
}

/// The status is the job's although its leftovers had to be stopped.
#[test]
fn a12_a_stop_signal_ends_the_wait_for_leftovers() {
    let (place, family) = (Place::embedded(), Family::new());
    let run = family.of(place.run("k")).args(["--kill-after", "500ms"]);
    let mut running = run
        .job("(trap '' TERM; exec sleep 60) & echo $$; exit 3")
        .start();
    let first = running.lines(1).remove(0);
    wait_for_the_end_of(&first);
    running.signal(SIGTERM);
    running.wait().code(3);
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn a12_unknown_leftovers_are_a_usage_error() {
    let place = Place::embedded();
    let run = place.run("k").args(["--leftovers", "keep", "--", "true"]);
    run.run().code(64).says(&["wait", "kill", "leave"]);
    assert_eq!(place.rows("k"), []);
}

#[test]
fn a12_a_daemon_does_not_keep_the_lock() {
    let (place, family) = (Place::embedded(), Family::new());
    // A daemon forks twice, and its parents end.
    let job = "setsid sh -c 'setsid sleep 60 & exit'; exit 3";
    let output = family.of(place.run("k")).job(job).run().code(3).quiet();
    output.took_at_most(Duration::from_secs(4));
    assert!(family.own().is_empty(), "{:?}", family.own());
    assert_eq!(family.job().len(), 1, "the daemon: {:?}", family.job());
    place.assert_free("k");
}

/// Compiles [`HEADLESS`] and returns the shell command that runs it.
fn headless(place: &Place, gate: &std::path::Path) -> String {
    let (source, program) = (place.file("headless.c"), place.file("headless"));
    fs::write(&source, HEADLESS).expect("the source can be written");
    let compiled = std::process::Command::new("cc")
        .args(["-pthread", "-o"])
        .args([&program, &source])
        .output()
        .expect("there is a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    let word = |path: &std::path::Path| quoted(path.to_str().expect("the path is UTF-8"));
    format!("{} {}", word(&program), word(gate))
}

/// Waits until a process looks like a zombie, as one does whose first thread
/// has ended.
fn wait_until_headless(pid: &str) {
    wait::until("the first thread to end", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|e| e.to_string())?;
        if stat.contains(") Z ") {
            Ok(())
        } else {
            Err(stat)
        }
    });
}

#[test]
fn a12_a_process_whose_first_thread_has_ended_keeps_the_lock() {
    let place = Place::embedded();
    let gate = place.file("gate");
    let job = format!("{} & echo $!; echo $$; exit 3", headless(&place, &gate));
    let mut running = place.run("k").args(["--ttl", "1s"]).job(&job).start();
    let pids = running.lines(2);
    wait_until_headless(&pids[0]);
    wait_for_the_end_of(&pids[1]);
    place.wait_for_renewal("k");
    running.assert_running();
    fs::write(gate, "").expect("the gate can be opened");
    running.wait().code(3);
    place.assert_free("k");
}

#[test]
fn a4_a_process_whose_first_thread_has_ended_is_killed() {
    let place = Place::embedded();
    let gate = place.file("gate");
    let job = format!("setsid {} & echo $!; wait", headless(&place, &gate));
    for signal in [None, Some(SIGKILL)] {
        let mut running = place.run("k").args(["--ttl", "2s"]).job(&job).start();
        let pid = running.lines(1).remove(0);
        wait_until_headless(&pid);
        match signal {
            Some(signal) => running.signal(signal),
            None => place.delete("k"),
        }
        wait::within(Duration::from_secs(4), "it to be killed", || {
            if fs::exists(format!("/proc/{pid}")).unwrap_or(true) {
                Err(pid.clone())
            } else {
                Ok(())
            }
        });
        match signal {
            Some(signal) => drop(running.wait().signal(signal)),
            None => drop(running.wait().code(76)),
        }
        place.query("DELETE FROM dblock_lock");
    }
}

#[test]
fn a12_a_zombie_in_the_group_does_not_keep_the_lock() {
    let (place, family) = (Place::embedded(), Family::new());
    let pipe = place.file("pipe");
    let pipe = quoted(pipe.to_str().expect("the path is UTF-8"));
    let job = format!(
        "mkfifo {pipe}; {} >{pipe} & read -r zombie <{pipe}; echo $zombie; exit 3",
        perl(ZOMBIE_KEEPER, &[])
    );
    let output = family.of(place.run("k")).job(&job).run().code(3).quiet();
    let zombie: i32 = output.text().trim().parse().expect("a pid");
    assert!(Process::of(zombie).is_some(), "the zombie is there still");
    output.took_at_most(Duration::from_secs(4));
    place.assert_free("k");
}

#[test]
fn a_job_of_many_orphans_leaves_no_zombies() {
    let (place, family) = (Place::embedded(), Family::new());
    let gate = place.gate();
    let orphans = "i=0; while [ $i -lt 200 ]; do (sh -c 'setsid true & :' &); i=$((i+1)); done";
    let job = format!("{orphans}; echo $$; {}; exit 5", gate.wait());
    let mut running = family.of(place.run("k")).job(&job).start();
    running.job();
    let mut own: Vec<_> = family.own().into_iter().map(|it| it.process).collect();
    own.push(running.process());
    wait::until("the orphans to be reaped", || {
        let zombies: Vec<_> = own.iter().map(|one| (*one, zombies_of(*one))).collect();
        if zombies.iter().all(|(_, of)| of.is_empty()) {
            Ok(())
        } else {
            Err(format!("{zombies:?}"))
        }
    });
    gate.open();
    running.wait().code(5).quiet();
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn b7_the_end_of_the_job_is_the_end_and_not_the_end_of_its_output() {
    let (place, family) = (Place::embedded(), Family::new());
    for (options, job) in [
        ("--leftovers kill", "sleep 60 & echo done; exit 3"),
        ("--leftovers leave", "sleep 60 & echo done; exit 3"),
        ("", "setsid sleep 60 & echo done; exit 3"),
    ] {
        let begin = Instant::now();
        // The reader of the pipe reads one line only, as the writer's end is
        // still held by what is left.
        let script = format!(
            "{{ env {} dblock run --key k {options} -- sh -c '{job}'; echo \"status $?\"; }} | \
             {{ read -r line; echo \"$line\"; read -r line; echo \"$line\"; }}",
            family.mark()
        );
        let call = place.shell(&script).run().code(0);
        call.stdout("done\nstatus 3\n");
        assert!(
            begin.elapsed() < Duration::from_secs(5),
            "{options}: {:?}",
            begin.elapsed()
        );
        place.assert_free("k");
    }
}

#[test]
fn b7_a_pipe_ends_with_the_job() {
    let (place, family) = (Place::embedded(), Family::new());
    // Whatever helps dblock must not hold the pipe open.
    let script = format!(
        "env {} dblock run --key k -- sh -c 'echo done' | cat; echo end",
        family.mark()
    );
    let call = place.shell(&script).run().code(0).stdout("done\nend\n");
    call.took_at_most(Duration::from_secs(5));

    // Killed as well.
    let script = format!(
        "env {} dblock run --key k -- sh -c 'echo $$; exec sleep 60' | cat; echo end",
        family.mark()
    );
    let mut running = place.shell(&script).start();
    running.job();
    let dblock = i32::try_from(place.row("k").pid).expect("a pid fits");
    Process::of(dblock)
        .expect("dblock is there")
        .signal(SIGKILL);
    running.wait().code(0).took_at_most(Duration::from_secs(10));
    family.vanishes();
}

#[test]
fn a13_the_second_signal_halves_what_is_left() {
    let (place, family) = (Place::embedded(), Family::new());
    let run = family.of(place.run("k")).args(["--kill-after", "6s"]);
    let job = "trap '' INT TERM; echo $$; while :; do sleep 0.05; done";
    let mut running = run.job(job).start();
    running.job();
    let begin = Instant::now();
    running.signal(SIGINT);
    thread::sleep(Duration::from_secs(2));
    let second = Instant::now();
    running.signal(SIGTERM);
    running.wait().signal(SIGKILL);
    // Six seconds less what has passed, and half of that.
    let most = (Duration::from_secs(6) - (second - begin)) / 2 + Duration::from_millis(800);
    let took = second.elapsed();
    assert!(
        took < most,
        "{took:?} after the second signal, at most {most:?}"
    );
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn a13_ten_seconds_of_a_cancelled_ci_job_are_enough() {
    let (place, family) = (Place::embedded(), Family::new());
    let run = family.of(place.run("k")).args(["--kill-after", "5s"]);
    let stamps = place.file("stamps");
    let stamp = perl(STAMP, &[stamps.to_str().expect("the path is UTF-8")]);
    let job = format!("trap '' INT TERM; setsid {stamp} & echo $$; exec {stamp}");
    let mut running = run.job(&job).start();
    running.job();
    let begin = Instant::now();
    running.signal(SIGINT);
    let dead = wait::within(Duration::from_millis(7500), "dblock to end", || {
        if running.process().is_alive() {
            Err(running.facts())
        } else {
            Ok(begin.elapsed())
        }
    });
    assert!(dead >= Duration::from_secs(5), "killed after {dead:?}");
    running.wait().signal(SIGKILL);
    family.assert_gone();
    place.assert_free("k");
}

/// Waits for lines of the job's, and returns those after the first.
#[track_caller]
fn heard(running: &mut Running, count: usize) -> Vec<String> {
    running.lines(1 + count).split_off(1)
}

fn counter(place: &Place, family: &Family) -> Running {
    let run = family.of(place.run("k")).args(["--kill-after", "5s"]);
    let mut running = run.args(["--", "perl", "-e", COUNTER]).start();
    running.job();
    running
}

#[test]
fn a2_each_signal_arrives_once() {
    let place = Place::embedded();
    for signal in [SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGTSTP, SIGCONT] {
        let family = Family::new();
        let mut running = counter(&place, &family);
        let mut expected = Vec::new();
        for _ in 0..3 {
            running.signal(signal);
            expected.push(signal.as_str()[3..].to_owned());
            assert_eq!(heard(&mut running, expected.len()), expected);
        }
        // What would still be on its way comes before these two.
        running.signal(SIGINT);
        expected.push("INT".to_owned());
        assert_eq!(heard(&mut running, expected.len()), expected);
        running.signal(SIGUSR2);
        expected.push("USR2".to_owned());
        let output = running.wait().code(5).quiet();
        let lines: Vec<_> = output.text().lines().skip(1).collect();
        assert_eq!(lines, expected, "{signal}");
        family.assert_gone();
        place.assert_free("k");
    }
}

/// A program means such a signal for itself; the helpers that it has started
/// would die of it.
#[test]
fn a2_a_signal_for_the_program_does_not_reach_its_helpers() {
    let place = Place::embedded();
    for (name, signal) in [("USR1", SIGUSR1), ("USR2", SIGUSR2), ("ALRM", SIGALRM)] {
        let (family, gate) = (Family::new(), place.gate());
        let job = format!(
            "sh -c 'echo $$; exec sleep 60' & helper=$!; trap 'echo caught' {name}; echo $$; {}; \
             kill -0 $helper && echo alive; kill $helper; exit 5",
            gate.wait()
        );
        let mut running = family.of(place.run("k")).job(&job).start();
        running.processes(2);
        running.signal(signal);
        assert_eq!(running.lines(3)[2], "caught");
        gate.open();
        let output = running.wait().code(5);
        assert!(output.text().ends_with("\ncaught\nalive\n"), "{output:?}");
    }
}

#[test]
fn a_member_that_cannot_be_signalled_keeps_the_lock() {
    let (place, family) = (Place::embedded(), Family::new());
    let rooted = match set_user_id_root(&place, "/usr/bin/setpriv") {
        Ok(copy) => copy,
        Err(why) => return skipped(&why),
    };
    // A program like sudo: it becomes root with all of its ids, so that an
    // ordinary user may not signal it any more.
    let sudo = format!(
        "{} --reuid 0 sleep 60",
        quoted(rooted.to_str().expect("UTF-8"))
    );
    let job = format!("{sudo} & echo $!; echo $$; exec sleep 60");
    let call = match as_a_user(&place) {
        Ok(call) => family.of(call),
        Err(why) => return skipped(&why),
    };
    let call = call.args([
        "dblock",
        "run",
        "--key",
        "k",
        "--ttl",
        "3s",
        "--kill-after",
        "500ms",
    ]);
    let mut running = call.job(&job).start();
    let lines = running.lines(2);
    let member = Process::printed(&lines[0]);
    let user_of = |process: Process| {
        let text = fs::read_to_string(format!("/proc/{}/status", process.pid()));
        let text = text.unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Uid:"));
        line.map(|line| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
    };
    // Where programs with this bit are not honoured there is nothing to see.
    let became = wait::until("the member to have changed its user", || {
        let users = user_of(member).ok_or("it is gone")?;
        let name = fs::read_to_string(format!("/proc/{}/comm", member.pid()));
        match name.as_deref() {
            Ok("sleep\n") => Ok(users),
            other => Err(format!("{other:?} {users:?}")),
        }
    });
    if became != ["0"; 4] {
        return skipped("the directory for temporary files ignores set-user-ID bits");
    }
    running.signal(SIGTERM);
    wait_for_the_end_of(&lines[1]);
    // What can be killed is dead, and the lease goes on for the other.
    wait::until("a line that names what cannot be killed", || {
        let facts = running.facts();
        let said = facts
            .split_once("--- stderr\n")
            .map_or("", |(_, said)| said);
        let mut words = said.split(|c: char| !c.is_ascii_digit());
        if words.any(|word| word == lines[0]) {
            Ok(())
        } else {
            Err(facts)
        }
    });
    place.wait_for_renewal("k");
    place.wait_for_renewal("k");
    assert!(member.is_alive());
    running.assert_running();
    place.run("k").args(["--", "true"]).run().code(75);
    // Only root can end it.
    member.signal(SIGKILL);
    let output = running.wait();
    family.assert_gone();
    output.signal(SIGTERM);
    place.assert_free("k");
}
