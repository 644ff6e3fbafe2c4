//! Signals: whatever ends dblock ends the job first, and says so.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{
    self, SIGALRM, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use nix::sys::signal::killpg;
use nix::unistd::Pid;

use crate::support::on_every_store;
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::running::Running;
use crate::support::server::query_on;
use crate::support::wait;

on_every_store!(
    a2_each_signal_ends_the_job_and_then_dblock,
    a2_a_job_that_catches_the_signal_decides_the_status,
    a3_a_waiter_ends_at_once,
    a3_a_signal_right_at_the_start,
    a7_ignored_signals_stay_ignored,
    a9_a_stopped_job_hears_term,
    a_signal_that_the_job_catches_arrives_once,
    a_job_that_ignores_term_is_killed,
    a13_a_second_signal_shortens_the_wait,
);

/// How long a signal may take to end dblock where nothing is to be waited for:
/// about a second, and some air for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A job that prints its process id and ends by any signal.
const SLEEP: &str = "echo $$; exec sleep 60";

fn a2_each_signal_ends_the_job_and_then_dblock(place: &Place) {
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM] {
        let mut running = place.run("k").job(SLEEP).start();
        let job = running.job();
        let begin = Instant::now();
        running.signal(signal);
        running.wait().signal(signal);
        assert!(
            begin.elapsed() < AT_ONCE,
            "{signal} took {:?}",
            begin.elapsed()
        );
        assert!(!job.is_alive(), "{signal} left the job alive");
        place.assert_free("k");
    }
}

/// A job that catches a signal, prints its process id and never ends by itself.
fn catching(signal: &str, reaction: &str) -> String {
    format!("trap '{reaction}' {signal}; echo $$; while :; do sleep 0.05; done")
}

fn a2_a_job_that_catches_the_signal_decides_the_status(place: &Place) {
    for (name, signal, status) in [("TERM", SIGTERM, 0), ("INT", SIGINT, 5), ("HUP", SIGHUP, 0)] {
        let job = catching(name, &format!("exit {status}"));
        let mut running = place.run("k").job(&job).start();
        let job = running.job();
        running.signal(signal);
        running.wait().code(status);
        assert!(!job.is_alive());
        place.assert_free("k");
    }
}

fn a3_a_waiter_ends_at_once(place: &Place) {
    let mut holder = place.run("k").job(SLEEP).start();
    holder.job();
    let held = place.row("k");
    for signal in [SIGTERM, SIGINT] {
        let marker = place.file("started");
        let waiter = place
            .run("k")
            .args(["--wait", "1h", "--", "touch"])
            .arg(&marker)
            .start();
        place.wait_until_reached_by(&waiter);
        end_by(waiter, signal);
        assert!(!marker.exists(), "the job was started");
        assert_eq!(place.row("k").owner, held.owner);
    }
    holder.signal(SIGTERM);
    holder.wait().signal(SIGTERM);
    place.assert_free("k");
}

/// Sends a signal and checks that dblock dies of it at once.
#[track_caller]
fn end_by(running: Running, signal: Signal) {
    let begin = Instant::now();
    running.signal(signal);
    running.wait().signal(signal).stdout("");
    assert!(
        begin.elapsed() < AT_ONCE,
        "{signal} took {:?}",
        begin.elapsed()
    );
}

fn a3_a_signal_right_at_the_start(place: &Place) {
    // Without a wait for anything, so that the signal hits another phase each
    // time. A job that was started is ended, and shows it by its status.
    for round in 0..20 {
        let running = place.run("k").args(["--", "sleep", "60"]).start();
        let pause = Duration::from_millis(round);
        let begin = Instant::now();
        while begin.elapsed() < pause {
            std::thread::yield_now();
        }
        end_by(running, SIGTERM);
        place.assert_free("k");
    }
}

fn a7_ignored_signals_stay_ignored(place: &Place) {
    for (around, signals) in [
        ("exec nohup", &[SIGHUP][..]),
        ("trap '' INT QUIT; exec", &[SIGINT, SIGQUIT]),
        ("trap '' TERM USR1 ALRM; exec", &[SIGTERM, SIGUSR1, SIGALRM]),
    ] {
        let gate = place.gate();
        let job = format!("echo $$; {}; echo finished", gate.wait());
        let script = format!("{around} dblock run --key k -- sh -c \"$JOB\"");
        let mut running = place.shell(&script).env("JOB", job).start();
        let job = running.job();
        for signal in signals {
            running.signal(*signal);
            for process in [running.process(), job] {
                let group = process.group().expect("the process is there");
                killpg(Pid::from_raw(group), *signal).expect("the group can be signalled");
            }
        }
        gate.open();
        let output = running.wait().code(0);
        assert!(output.text().ends_with("\nfinished\n"), "{}", output.text());
        place.assert_free("k");
    }
}

fn a9_a_stopped_job_hears_term(place: &Place) {
    let job = catching("TERM", "echo bye; exit 4");
    let mut running = place
        .run("k")
        .args(["--ttl", "9s", "--kill-after", "3s"])
        .job(&job)
        .start();
    let job = running.job();
    job.signal(SIGSTOP);
    job.wait_until_stopped();
    running.signal(SIGTERM);
    let output = running.wait().code(4);
    assert!(output.text().ends_with("\nbye\n"), "{}", output.text());
    place.assert_free("k");
}

fn a_signal_that_the_job_catches_arrives_once(place: &Place) {
    for (name, signal) in [
        ("USR1", SIGUSR1),
        ("USR2", SIGUSR2),
        ("ALRM", SIGALRM),
        ("WINCH", SIGWINCH),
    ] {
        let gate = place.gate();
        let job = format!("trap 'echo caught' {name}; echo $$; {}", gate.wait());
        let mut running = place.run("k").job(&job).start();
        running.job();
        running.signal(signal);
        let first = running.lines(2);
        assert_eq!(first[1], "caught");
        running.assert_running();
        gate.open();
        let output = running.wait().code(0).quiet();
        assert_eq!(output.text().matches("caught").count(), 1, "{name}");
    }
}

fn a_job_that_ignores_term_is_killed(place: &Place) {
    let mut running = place
        .run("k")
        .args(["--kill-after", "1s"])
        .job(&catching("TERM", ""))
        .start();
    let job = running.job();
    let begin = Instant::now();
    running.signal(SIGTERM);
    running.wait().signal(SIGKILL);
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(5),
        "{took:?}"
    );
    assert!(!job.is_alive());
    place.assert_free("k");
}

fn a13_a_second_signal_shortens_the_wait(place: &Place) {
    let mut running = place
        .run("k")
        .args(["--kill-after", "8s"])
        .job(&catching("TERM INT", ""))
        .start();
    running.job();
    let begin = Instant::now();
    running.signal(SIGINT);
    running.signal(SIGTERM);
    running.wait().signal(SIGKILL);
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(7), "{took:?}");
    place.assert_free("k");
}

#[test]
fn a3_a_signal_while_the_server_does_not_answer() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    proxy.hold();
    for signal in [SIGTERM, SIGINT] {
        let connections = proxy.connections();
        let run = place
            .run("k")
            .env("DBLOCK_URL", place.database().url_at(proxy.port()));
        let running = run.args(["--connect-timeout", "1m", "--", "true"]).start();
        wait::until("a connection", || {
            if proxy.connections() > connections {
                Ok(())
            } else {
                Err(running.facts())
            }
        });
        end_by(running, signal);
    }
    proxy.pass();
    place.assert_free("k");
}

#[test]
fn a3_a_signal_inside_a_database_call() {
    let place = Place::mariadb();
    let database = place.database();
    let mut other = database.connect();
    query_on(
        &mut other,
        "LOCK TABLES dblock_lock WRITE, dblock_meta WRITE",
    )
    .expect("the administrator may");
    let marker = place.file("started");
    // The limit of the call is far away, so that it is the signal that ends it.
    let run = place
        .run("k")
        .args(["--connect-timeout", "1m", "--wait", "1h"]);
    let running = run.args(["--", "touch"]).arg(&marker).start();
    wait::until("dblock to wait inside of the server", || {
        let waiting = database.server().try_query(&format!(
            "SELECT state FROM information_schema.processlist \
             WHERE user = '{}' AND state LIKE 'Waiting%'",
            database.user()
        ));
        match waiting {
            Ok(rows) if rows.len() == 1 => Ok(()),
            other => Err(format!("{other:?} {}", running.facts())),
        }
    });
    end_by(running, SIGTERM);
    query_on(&mut other, "UNLOCK TABLES").expect("the administrator may");
    // What dblock has asked for may be carried out now: no client is left that
    // would wait for it.
    wait::until("the server to be done with it", || {
        let rows = database.server().try_query(&format!(
            "SELECT state FROM information_schema.processlist WHERE user = '{}'",
            database.user()
        ));
        if rows.as_ref().is_ok_and(Vec::is_empty) {
            Ok(())
        } else {
            Err(format!("{rows:?}"))
        }
    });
    assert!(!marker.exists(), "the job was started");
    place.assert_free("k");
}
