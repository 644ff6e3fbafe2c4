//! A run inside the job of another run: it never waits for itself, and with
//! `--reentrant` it runs its command under the lease that is there.

use std::fs;

use nix::sys::signal::Signal::SIGTERM;

use crate::support::dblock::Dblock;
use crate::support::on_every_store;
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::users::{as_a_user, skipped};
use crate::support::wait;

on_every_store!(
    a_nested_run_of_the_same_key_is_busy_at_once,
    reentrant_runs_the_command_under_the_lease_that_is_there,
    reentrant_without_a_run_around_it_acquires,
    another_key_nests_and_the_chain_goes_on,
    another_store_is_another_lock,
    what_is_not_true_any_more_is_not_believed,
    a_copy_of_the_environment_is_no_proof,
    slots_must_agree_and_buckets_nest,
    the_command_under_the_lease_is_stopped_with_the_job,
);

/// A run whose job may call dblock on the same store.
fn outer(place: &Place, key: &str, options: &[&str], script: &str) -> Dblock {
    let run = place.run(key).arg("--pass-credentials");
    run.args(options).job(script)
}

fn a_nested_run_of_the_same_key_is_busy_at_once(place: &Place) {
    let words = ["\"k\" is held by the job that this runs in", "--reentrant"];
    for wait in ["--no-wait", "--wait", "--wait=1h"] {
        let script = format!("exec dblock run -k k {wait} -- echo no");
        let output = outer(place, "k", &[], &script).run();
        output.code(75).stdout("").one_line(&words);
    }
    let output = outer(
        place,
        "k",
        &[],
        "exec dblock run -k k -E 7 -w -q -- echo no",
    )
    .run();
    output.code(7).stdout("").quiet();
    // Without the credentials too, where nobody says which store is meant.
    let output = place
        .run("k")
        .job("exec dblock run -k k -w -- echo no")
        .run();
    output.code(75).stdout("").one_line(&words);
    let report = place.file("report");
    let script = format!(
        "exec dblock run -k k --report '{}' -- echo no",
        report.display()
    );
    outer(place, "k", &["--note", "outer"], &script)
        .run()
        .code(75);
    let text = fs::read(&report).expect("a report");
    let report: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(report["outcome"], "busy");
    assert_eq!(report["status"], 75);
    assert_eq!(report["holder"]["note"], "outer");
    place.assert_free("k");
}

fn reentrant_runs_the_command_under_the_lease_that_is_there(place: &Place) {
    let script = "exec 3<&0; \
        dblock run -k k --reentrant --wait -- sh -c 'echo $DBLOCK_OWNER $DBLOCK_TOKEN; dblock check; echo $?; exit 9'; \
        echo $?; echo $DBLOCK_OWNER $DBLOCK_TOKEN; \
        dblock run -k k --reentrant -- no-such-command; echo $?; \
        dblock run -k k --reentrant -- /etc/passwd; echo $?; \
        dblock run -k k --reentrant -- sh -c 'kill -9 $$' 2>/dev/null; echo $?; \
        dblock check; echo $?";
    for pass in [&["--pass-credentials"][..], &[]] {
        let output = place.run("k").args(pass).job(script).run().code(0);
        let lines: Vec<&str> = output.text().lines().collect();
        assert_eq!(lines[0], lines[3], "the outer owner and token: {lines:?}");
        assert_eq!(lines[1..3], ["0", "9"], "{lines:?}");
        assert_eq!(lines[4..], ["127", "126", "137", "0"], "{lines:?}");
        let said: Vec<&str> = output.stderr.lines().collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("not found: no-such-command") && said[1].contains("/etc/passwd"));
    }
    place.assert_free("k");
    // No second row, and no process of dblock's own for it.
    let gate = place.gate();
    let script = format!(
        "dblock run -k k --reentrant -- sh -c 'echo $$; echo $PPID; {}' & echo $$ $!; wait",
        gate.wait()
    );
    let mut running = outer(place, "k", &[], &script).start();
    let mut lines = running.lines(3);
    lines.sort_by_key(|line| !line.contains(' '));
    let (shell, nested) = lines[0].split_once(' ').expect("two numbers");
    assert_eq!(
        lines[1..],
        [nested, shell],
        "the command took dblock's place"
    );
    place.row("k");
    gate.open();
    running.wait().code(0).quiet();
    place.assert_free("k");
    // What only a run of its own could do is said to be left undone.
    let script = "exec dblock run -k k --reentrant --timeout 1m --report r -- true";
    let output = outer(place, "k", &[], script).run().code(0);
    output.one_line(&["warning: --timeout, --report has no effect"]);
}

fn reentrant_without_a_run_around_it_acquires(place: &Place) {
    let run = place.run("k").args([
        "--reentrant",
        "--",
        "sh",
        "-c",
        "dblock check && echo $DBLOCK_KEY",
    ]);
    run.run().code(0).stdout("k\n").quiet();
    place.assert_free("k");
}

fn another_key_nests_and_the_chain_goes_on(place: &Place) {
    let script = "dblock run --pass-credentials -k 'b %:c' -- sh -c '\
            dblock check && echo $DBLOCK_KEY; \
            dblock run -w -k a -- echo no; echo $?; \
            dblock run --pass-credentials -k a --reentrant -- sh -c \"\
                dblock check; echo \\$? \\$DBLOCK_KEY; \
                dblock run -w -k \\\"b %:c\\\" -- echo no; echo \\$?; \
                dblock run -k \\\"b %:c\\\" --reentrant -- printenv DBLOCK_KEY\"'; \
        echo $?; dblock check; echo $?";
    let output = outer(place, "a", &[], script).run().code(0);
    let expected = "b %:c\n75\n0 a\n75\nb %:c\n0\n0\n";
    let output = output.stdout(expected);
    assert_eq!(output.stderr.lines().count(), 2, "{}", output.stderr);
    place.assert_free("a");
    place.assert_free("b %:c");
}

fn another_store_is_another_lock(place: &Place) {
    let other = Place::embedded();
    let script = format!(
        "dblock run --url '{}' -k k --reentrant -- sh -c 'echo $DBLOCK_OWNER; dblock check; echo $?; \
         dblock run -w -k k -- echo no; echo $?'; echo $DBLOCK_OWNER",
        other.url()
    );
    let output = outer(place, "k", &[], &script).run().code(0);
    let lines: Vec<&str> = output.text().lines().collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_ne!(lines[0], lines[3], "a lease of its own");
    assert_eq!(lines[1..3], ["0", "75"]);
    place.assert_free("k");
    other.assert_free("k");
    // Somebody else's there is not the surroundings'.
    let gate = other.gate();
    let (running, _) = held_by_another(&other, &gate.wait());
    for option in ["--reentrant", "--no-wait"] {
        let script = format!(
            "exec dblock run --url '{}' -k k {option} -- echo no",
            other.url()
        );
        let output = outer(place, "k", &[], &script).run().code(75).stdout("");
        let pid = running.pid();
        output.one_line(&["\"k\" is held by ", &format!("(pid {pid}, ")]);
    }
    gate.open();
    running.wait().code(0).quiet();
}

/// Starts a run of `k`, and returns the value of its `DBLOCK_HELD`.
#[track_caller]
fn held_by_another(place: &Place, gate: &str) -> (crate::support::running::Running, String) {
    let mut running = place
        .run("k")
        .job(&format!("echo \"$DBLOCK_HELD\"; {gate}"))
        .start();
    let held = running.lines(1).remove(0);
    (running, held)
}

fn what_is_not_true_any_more_is_not_believed(place: &Place) {
    let held = outer(place, "k", &[], "echo \"$DBLOCK_HELD\"")
        .run()
        .code(0)
        .text()
        .to_owned();
    let inside = |key: &str| place.run(key).env("DBLOCK_HELD", held.trim());
    // The run is over: the key is free, and then it is somebody else's.
    inside("k")
        .args(["--reentrant", "--"])
        .arg("true")
        .run()
        .code(0)
        .quiet();
    inside("k").args(["--", "true"]).run().code(0).quiet();
    let gate = place.gate();
    let (running, _) = held_by_another(place, &gate.wait());
    for option in ["--reentrant", "--no-wait"] {
        let output = inside("k").args([option, "--", "true"]).run();
        output.code(75).one_line(&["\"k\" is held by ", "(pid "]);
    }
    gate.open();
    running.wait().code(0);

    // The lease is lost, and the job lives on for its grace.
    let script = "trap 'dblock run -k k --reentrant -- echo no; echo $?; exit' TERM; \
                  echo $$; until false; do sleep 0.05; done";
    let mut running = outer(place, "k", &["--ttl", "6s"], script).start();
    running.job();
    let thief = place.steal("k");
    running.wait().code(76).says(&["thief-host"]);
    assert_eq!(place.row("k"), thief);
}

fn a_copy_of_the_environment_is_no_proof(place: &Place) {
    let gate = place.gate();
    let (running, held) = held_by_another(place, &gate.wait());
    // Not below that dblock: nobody would stop this command with its job.
    let copy = place.run("k").env("DBLOCK_HELD", &held);
    copy.args(["--reentrant", "--", "echo", "no"])
        .run()
        .code(75)
        .stdout("")
        .one_line(&["cannot be proven here", "not below the dblock"]);
    let row = place.row("k");
    let copy = place
        .run("k")
        .env("DBLOCK_KEY", "k")
        .env("DBLOCK_OWNER", &row.owner);
    copy.args(["--reentrant", "--", "echo", "no"])
        .run()
        .code(75)
        .stdout("")
        .one_line(&["cannot be proven here", "where its file is"]);
    gate.open();
    running.wait().code(0).quiet();
    place.assert_free("k");
    // A lease that was taken by hand is no run.
    let script = "o=$(dblock acquire -k k) && DBLOCK_KEY=k DBLOCK_OWNER=$o dblock run -k k --reentrant -- echo no";
    place
        .shell(script)
        .run()
        .code(75)
        .stdout("")
        .one_line(&["by hand"]);
}

fn slots_must_agree_and_buckets_nest(place: &Place) {
    let script = "dblock run -k k --reentrant -- echo no; echo $?; \
                  dblock run -k k --slots 3 -- echo no; echo $?; \
                  dblock run -k k --slots 3 -w -- echo no; echo $?; \
                  dblock run -k k --slots 3 --reentrant -- sh -c 'echo $0 $DBLOCK_SLOT' $DBLOCK_SLOT";
    for pass in [&["--pass-credentials"][..], &[]] {
        let run = place.run("k").args(pass).args(["--slots", "3"]).job(script);
        let output = run.run().code(0);
        let lines: Vec<&str> = output.text().lines().collect();
        assert_eq!(lines[..3], ["78", "75", "75"]);
        let (around, under) = lines[3].split_once(' ').expect("two slots");
        assert_eq!(around, under);
        output.says(&["\"k\" is held with --slots 3 by the job that this runs in, and --slots 1"]);
    }
    // Each bucket is a lock of its own.
    let bucket = |value: &str| dblock::lock::slot_of(value, 2);
    let mut values = ["b", "c", "d", "e"].into_iter();
    let other = values.find(|value| bucket(value) != bucket("a"));
    let other = other.expect("a value of the other bucket");
    let script = format!(
        "dblock run -k k --slots 2 --slot-by {other} --reentrant -- printenv DBLOCK_SLOT; \
         dblock run -k k --slots 2 --slot-by a --reentrant -- printenv DBLOCK_SLOT; \
         dblock run -k k --slots 2 --slot-by a -w -- echo no; echo $?"
    );
    let slots = ["--slots", "2", "--slot-by", "a"];
    let output = outer(place, "k", &slots, &script).run().code(0);
    output.stdout(format!("{}\n{}\n75\n", bucket(other), bucket("a")));
    place.assert_free("k");
}

fn the_command_under_the_lease_is_stopped_with_the_job(place: &Place) {
    let script = "dblock run -k k --reentrant -- sh -c 'trap \"\" TERM; echo $$; sleep 60 & echo $!; wait; wait'; :";
    let mut running = outer(place, "k", &["--ttl", "3s"], script).start();
    let tree: Vec<Process> = running.processes(2);
    place.steal("k");
    running.wait().code(76);
    assert!(tree.iter().all(|process| !process.is_alive()));

    place.delete("k");
    let script = "dblock run -k k --reentrant -- sh -c 'echo $$; exec sleep 60'; echo $?; exit 3";
    let mut running = outer(place, "k", &["--ttl", "30s"], script).start();
    let nested = running.job();
    nested.signal(SIGTERM);
    running.wait().code(3);
    wait::until("the row to go", || {
        let rows = place.rows("k");
        if rows.is_empty() {
            Ok(())
        } else {
            Err(format!("{rows:?}"))
        }
    });
}

#[test]
fn what_cannot_be_read_is_refused() {
    let place = Place::embedded();
    let gate = place.gate();
    let (running, held) = held_by_another(&place, &gate.wait());
    match as_a_user(&place) {
        Err(why) => skipped(&why),
        Ok(call) => {
            let call = call.args([
                "dblock",
                "run",
                "-k",
                "k",
                "--reentrant",
                "-w",
                "--",
                "true",
            ]);
            let output = call.env("DBLOCK_HELD", &held).run();
            output
                .code(75)
                .one_line(&["cannot be proven here", "Permission denied"]);
        }
    }
    gate.open();
    running.wait().code(0).quiet();
}

/// The lists of surroundings that are too long for one message to the guard.
#[test]
fn jobs_that_are_nested_too_deep_are_refused() {
    let place = Place::embedded();
    let word = format!("k:{}", crate::support::place::THIEF);
    let many = vec![word; 400].join(" ");
    let run = place.run("k").env("DBLOCK_HELD", many);
    run.args(["--", "true"])
        .run()
        .code(78)
        .one_line(&["nested too deep"]);
    place.assert_free("k");
}

#[test]
fn thirty_runs_in_one_another() {
    let place = Place::embedded();
    let script = "[ $0 -eq 0 ] && exec dblock run -k 'key 30' --reentrant -- printenv DBLOCK_KEY; \
                  exec dblock run --pass-credentials -k \"key $0\" -- sh -c \"$1\" $(($0 - 1)) \"$1\"";
    let output = place.shell("sh -c \"$0\" 30 \"$0\"").arg(script).run();
    output.code(0).stdout("key 30\n").quiet();
}
