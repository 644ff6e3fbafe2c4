//! `dblock check` inside a job: it answers from what the dblock above lets the
//! job know, without the network, and never yes when that dblock is gone,
//! stopped, or has lost the lease.

use std::fs;

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP};

use crate::support::dblock::{Dblock, PROGRAM};
use crate::support::faketime::FalseClock;
use crate::support::on_every_store;
use crate::support::place::Place;
use crate::support::users::{as_a_user, skipped};
use crate::support::wait;

on_every_store!(
    inside_a_job_no_options_and_no_store_are_needed,
    less_left_than_wanted_is_no,
    the_lease_goes_on_with_each_renewal,
    no_before_the_job_is_asked_to_end_for_a_loss,
    no_when_dblock_is_stopped_beyond_the_lease,
    no_when_dblock_is_killed,
    no_after_the_run,
    asked_for_by_hand_the_store_answers,
);

/// Prints a job's variables for [`outside`], and keeps the job.
fn shown(place: &Place, ttl: &str, job: &str) -> Dblock {
    let job = format!("echo $$; echo \"$DBLOCK_HELD\"; echo \"$DBLOCK_LEASE\"; {job}");
    place.run("k").args(["--ttl", ttl]).job(&job)
}

/// Calls `check` with the variables that a job has printed, so that it can be
/// asked when the job is dead.
fn outside(held: &str) -> Dblock {
    let owner = held.split(':').nth(1).expect("an owner id");
    Dblock::unconfigured()
        .arg("check")
        .env("DBLOCK_KEY", "k")
        .env("DBLOCK_OWNER", owner)
        .env("DBLOCK_HELD", held)
}

fn inside_a_job_no_options_and_no_store_are_needed(place: &Place) {
    // The URL is not in the job's environment, and a store that is named in it
    // is not asked.
    place
        .run("k")
        .job("dblock check && DBLOCK_URL=mysql://nobody@127.0.0.1:1/none dblock check -v")
        .run()
        .code(0)
        .stdout("")
        .one_line(&["\"k\" is held, ", "s left"]);
    let bare = "env -i \"$0\" check; echo $?; env -u DBLOCK_HELD \"$0\" check; echo $?";
    place
        .run("k")
        .args(["--", "sh", "-c", bare, PROGRAM])
        .run()
        .code(0)
        .stdout("64\n78\n")
        .says(&["not inside a job", "DBLOCK_HELD", "no store is configured"]);
    // Without it a store that is named is asked.
    place
        .run("k")
        .args(["--pass-credentials", "--"])
        .args(["env", "-u", "DBLOCK_HELD", PROGRAM, "check"])
        .run()
        .code(0)
        .quiet();
}

fn less_left_than_wanted_is_no(place: &Place) {
    place
        .run("k")
        .args(["--ttl", "60s"])
        .job("dblock check --min-left 30 && exec dblock check --min-left 2m")
        .run()
        .code(77)
        .one_line(&["\"k\" has only ", "s left"]);
}

/// The value of a line of the file that the job is given.
#[track_caller]
fn line(lease: &str, name: &str) -> String {
    let text = fs::read_to_string(lease).expect("the lease's file can be read");
    let mut values = text.lines().filter_map(|line| line.split_once(' '));
    let found = values.find(|(other, _)| *other == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {text}"))
        .1
        .to_owned()
}

fn the_lease_goes_on_with_each_renewal(place: &Place) {
    let gate = place.gate();
    let mut running = shown(place, "3s", &gate.wait()).start();
    let lines = running.lines(3);
    let lease = &lines[2];
    let row = place.row("k");
    assert_eq!(line(lease, "key"), "k");
    assert_eq!(line(lease, "owner"), row.owner);
    assert_eq!(line(lease, "token"), row.token.to_string());
    assert_eq!(line(lease, "state"), "held");
    let first: u64 = line(lease, "expires_ms").parse().expect("a number");
    wait::until("a renewal to show", || {
        let now: u64 = line(lease, "expires_ms").parse().expect("a number");
        if now > first {
            Ok(())
        } else {
            Err(running.facts())
        }
    });
    // What is there is never half of a change, however often it is looked at.
    assert_eq!(
        fs::write(lease, "").map_err(|error| error.raw_os_error()),
        Err(Some(1))
    );
    outside(&lines[1]).run().code(0).quiet();
    gate.open();
    running.wait().code(0).quiet();
}

fn no_before_the_job_is_asked_to_end_for_a_loss(place: &Place) {
    let job = "trap 'dblock check; echo $?; exit' TERM; until false; do sleep 0.05; done";
    let mut running = shown(place, "3s", job).start();
    running.lines(3);
    place.steal("k");
    wait::until("the job's answer", || {
        let lines = running.lines(4);
        if lines[3] == "77" {
            Ok(())
        } else {
            Err(lines.join("\n"))
        }
    });
    running
        .wait()
        .code(76)
        .says(&["\"k\" was lost, and its job is being stopped"]);
}

fn no_when_dblock_is_stopped_beyond_the_lease(place: &Place) {
    let mut running = shown(place, "2s", "sleep 60").start();
    let held = running.lines(3).remove(1);
    let job = running.job();
    outside(&held).run().code(0).quiet();
    running.signal(SIGSTOP);
    running.process().wait_until_stopped();
    let said = wait::until("the lease to run out", || {
        let left = place.left_ms("k");
        let output = outside(&held).run();
        if output.stderr.is_empty() {
            assert!(left > 0, "yes, and it had expired {} ms before", -left);
            return Err(running.facts());
        }
        Ok(output.code(77))
    });
    said.one_line(&["\"k\" has expired: its dblock has not renewed it in time"]);
    assert!(!job.is_alive(), "the job was killed before");
    running.signal(SIGCONT);
    running.wait().code(76);
}

fn no_when_dblock_is_killed(place: &Place) {
    let mut running = shown(place, "60s", "sleep 60").start();
    let held = running.lines(3).remove(1);
    running.job();
    outside(&held).run().code(0).quiet();
    running.signal(SIGKILL);
    // Killed, and not yet waited for: a zombie.
    let said = wait::until("the answer to change", || {
        let output = outside(&held).run();
        if output.stderr.is_empty() {
            return Err(running.facts());
        }
        Ok(output.code(77))
    });
    let words = ["\"k\" is not held: the dblock that held it is gone"];
    said.one_line(&words);
    running.wait().signal(SIGKILL);
    outside(&held).run().code(77).one_line(&words);
}

fn no_after_the_run(place: &Place) {
    let (go, answer) = (place.file("go"), place.file("answer"));
    // It leaves the job's group and outlives the run.
    let daemon = format!(
        "until [ -e '{}' ]; do sleep 0.05; done; dblock check 2>/dev/null; echo $? >'{}'",
        go.display(),
        answer.display()
    );
    let job = "setsid sh -c \"$0\" >/dev/null 2>&1 & echo \"$DBLOCK_HELD\"";
    let run = place.run("k").args(["--", "sh", "-c", job, &daemon]);
    let output = run.run().code(0).quiet();
    let held = output.text().trim().to_owned();
    fs::write(&go, "").expect("a file");
    let found = wait::until("the daemon's answer", || {
        let text = fs::read_to_string(&answer).unwrap_or_default();
        if text.ends_with('\n') {
            Ok(text)
        } else {
            Err(text)
        }
    });
    assert_eq!(found, "77\n");
    outside(&held).run().code(77).one_line(&["gone"]);
    // The same number, another lease.
    let gate = place.gate();
    let mut next = shown(place, "30s", &gate.wait()).start();
    let new = next.lines(3).remove(1);
    let mut fields: Vec<&str> = new.split(':').collect();
    fields[1] = held.split(':').nth(1).expect("an owner id");
    outside(&fields.join(":"))
        .run()
        .code(77)
        .one_line(&["gone"]);
    gate.open();
    next.wait().code(0).quiet();
}

fn asked_for_by_hand_the_store_answers(place: &Place) {
    let gate = place.gate();
    let mut running = shown(place, "60s", &gate.wait()).start();
    let held = running.lines(3).remove(1);
    let owner = place.row("k").owner;
    place.steal("k");
    // dblock does not know yet; the store does.
    outside(&held).run().code(0).quiet();
    outside(&held)
        .args(["--url", &place.url()])
        .env("DBLOCK_PASSWORD", crate::support::PASSWORD)
        .run()
        .code(77)
        .one_line(&["thief-host"]);
    place
        .dblock()
        .args(["check", "--key", "k", "--owner", &owner])
        .run()
        .code(77)
        .one_line(&["thief-host"]);
    gate.open();
    running.wait().code(0);
}

#[test]
fn what_another_user_may_not_read_is_asked_of_the_store() {
    let place = Place::embedded();
    let gate = place.gate();
    let mut running = shown(&place, "60s", &gate.wait()).start();
    let held = running.lines(3).remove(1);
    let owner = held.split(':').nth(1).expect("an owner id").to_owned();
    let call = |place: &Place| {
        let call = as_a_user(place)?;
        Ok::<_, String>(
            call.args([PROGRAM, "check"])
                .env("DBLOCK_KEY", "k")
                .env("DBLOCK_OWNER", &owner)
                .env("DBLOCK_HELD", &held),
        )
    };
    match call(&place) {
        Err(why) => skipped(&why),
        Ok(check) => {
            check
                .arg("-v")
                .run()
                .code(0)
                .says(&["Permission denied", "asking the store"]);
            let check = call(&place).expect("as before").env_remove("DBLOCK_URL");
            check
                .run()
                .code(78)
                .one_line(&["Permission denied", "no store is configured"]);
        }
    }
    gate.open();
    running.wait().code(0).quiet();
}

#[test]
fn in_another_pid_namespace_nothing_is_believed() {
    let place = Place::embedded();
    let script = "unshare --user --map-root-user --pid --fork --mount-proc true 2>/dev/null \
                  || { echo skipped; exit; }; \
                  unshare --user --map-root-user --pid --fork --mount-proc dblock check; echo $?";
    let output = place.run("k").job(script).run().code(0);
    if output.text() == "skipped\n" {
        skipped("no pid namespace can be made here");
        return;
    }
    output
        .stdout("78\n")
        .says(&["another pid or time namespace"]);
}

#[test]
fn a_variable_that_makes_no_sense_is_an_error() {
    let held = format!("k:{}:1:2:3:x", crate::support::place::THIEF);
    outside(&held).run().code(78).one_line(&["DBLOCK_HELD"]);
}

/// Returns the code blocks of the document in a language.
fn blocks(language: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/fencing.md");
    let text = fs::read_to_string(path).expect("the document is there");
    let blocks = text.split("```").skip(1).step_by(2);
    let own = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    own.map(str::to_owned).collect()
}

/// Runs a reader of the document's, in another language, in each state.
fn reader_of_the_document(reader: &str, words: &[&str]) {
    let place = Place::embedded();
    let gate = place.gate();
    let job = format!("env | grep ^DBLOCK_; {}", gate.wait());
    let mut running = place.run("k").args(["--ttl", "2s"]).job(&job).start();
    let lines = running.lines(7);
    let ask = || {
        let mut call = Dblock::program("/usr/bin/env").args(words).arg(reader);
        for (name, value) in lines.iter().filter_map(|line| line.split_once('=')) {
            call = call.env(name, value);
        }
        call.run().code(0).quiet().text().to_owned()
    };
    assert_eq!(ask(), "yes\n");
    running.signal(SIGSTOP);
    wait::until("the lease to run out", || {
        let left = place.left_ms("k");
        let answer = ask();
        if answer == "no\n" {
            return Ok(());
        }
        assert!(left > 0, "yes, and it had expired {} ms before", -left);
        Err(answer)
    });
    running.signal(SIGKILL);
    running.wait().signal(SIGKILL);
    assert_eq!(ask(), "no\n");
}

#[test]
fn the_shell_s_reader_in_the_document() {
    let blocks = blocks("sh");
    let reader = blocks.iter().find(|block| block.starts_with("held()"));
    let reader = reader.expect("a function").clone() + "if held; then echo yes; else echo no; fi";
    reader_of_the_document(&reader, &["sh", "-c"]);
}

#[test]
fn python_s_reader_in_the_document() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        skipped("there is no Python here");
        return;
    }
    let reader = blocks("python").concat() + "\nprint('yes' if held() else 'no')";
    reader_of_the_document(&reader, &["python3", "-c"]);
}

#[test]
fn the_time_of_day_changes_no_answer() {
    const A_YEAR_MS: i64 = 366 * 86_400_000;
    let clock = FalseClock::new();
    let place = Place::embedded();
    let run = shown(&place, "2s", "sleep 60");
    let mut running = clock.on_the_host_of(run).start();
    let held = running.lines(3).remove(1);
    running.job();
    for offset in [A_YEAR_MS, -A_YEAR_MS] {
        clock.set_offset_ms(offset);
        place.wait_for_renewal("k");
        clock.on_the_host_of(outside(&held)).run().code(0).quiet();
    }
    running.signal(SIGSTOP);
    wait::until("the lease to run out", || {
        let output = clock.on_the_host_of(outside(&held)).run();
        if output.stderr.is_empty() {
            return Err(running.facts());
        }
        Ok(output.code(77))
    });
    clock.set_offset_ms(-2 * A_YEAR_MS);
    let output = clock.on_the_host_of(outside(&held)).run();
    output.code(77).one_line(&["expired"]);
    running.signal(SIGCONT);
    running.wait().code(76);
}
