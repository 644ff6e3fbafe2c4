//! What `run`, `acquire` and the operator's commands say beyond a key and a
//! TTL: slots, times for which a key stays shut, and blocks.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use serde_json::Value;

use crate::support::dblock::Dblock;
use crate::support::family::Family;
use crate::support::on_every_store;
use crate::support::place::{Gate, Place};
use crate::support::proxy::Proxy;
use crate::support::running::Running;
use crate::support::server::Server;
use crate::support::wait;

on_every_store!(
    as_many_jobs_as_there_are_slots,
    another_number_of_slots_is_refused,
    a_value_always_has_the_same_slot,
    a_value_excludes_only_its_like,
    at_least_keeps_the_key_closed,
    at_least_counts_for_a_job_that_fails,
    a_job_that_was_not_started_closes_nothing,
    a_job_that_has_succeeded_is_skipped,
    a_success_is_cleared_by_force_release,
    terms_hold_for_what_is_held_by_hand,
    a_crash_keeps_the_key_shut_for_the_lock_delay,
    a_loss_keeps_the_key_shut_for_the_lock_delay,
    a_clean_end_knows_no_lock_delay,
    a_blocked_key_is_busy_and_its_holder_goes_on,
    a_waiting_run_starts_after_unblock,
    a_block_ends_by_itself,
    a_block_is_shown,
    a_block_is_not_for_force_release,
    values_out_of_range_are_usage_errors,
    the_largest_values_are_taken,
);

/// Nobody waits so long.
const AN_HOUR: &str = "1h";

/// Starts a job that prints its slot and waits at the gate, and waits until it
/// runs; returns it and the slot.
#[track_caller]
fn hold(place: &Place<'_>, options: &[&str], gate: &Gate) -> (Running, String) {
    let job = format!("echo $DBLOCK_SLOT; {}", gate.wait());
    let mut running = place.run("k").args(options).job(&job).start();
    let slot = running.lines(1).remove(0);
    (running, slot)
}

/// Returns what `status --json` says of the key.
#[track_caller]
fn status(place: &Place<'_>) -> Vec<Value> {
    let output = place.dblock().args(["status", "--json"]).run().code(0);
    let rows = output.quiet().json();
    rows.as_array().expect("an array").clone()
}

/// Returns the state of the one row that `status --json` shows.
#[track_caller]
fn state(place: &Place<'_>) -> String {
    let rows = status(place);
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows[0]["state"].as_str().expect("a state").to_owned()
}

/// Waits until somebody waits for the key.
#[track_caller]
fn await_waiter(place: &Place<'_>, running: &Running) {
    wait::until("the waiter to be shown", || {
        let waiters = place.query("SELECT pid FROM dblock_waiter WHERE lock_key = 'k'");
        if waiters == [[running.pid().to_string()]] {
            Ok(())
        } else {
            Err(format!("{waiters:?}; {}", running.facts()))
        }
    });
}

/// Returns when the store granted the one row of the key, by the store's own
/// clock; the lease must not have been renewed.
#[track_caller]
fn granted_at(place: &Place<'_>) -> i64 {
    let row = place.row("k");
    assert_eq!(row.renewals, 0, "{row:?}");
    row.expire_at - i64::try_from(row.ttl_ms).expect("a TTL")
}

// Slots.

fn as_many_jobs_as_there_are_slots(place: &Place) {
    const SLOTS: [&str; 2] = ["--slots", "3"];
    let gate = place.gate();
    let mut held: Vec<(Running, String)> = (0..3).map(|_| hold(place, &SLOTS, &gate)).collect();
    let mut slots: Vec<&str> = held.iter().map(|(_, slot)| slot.as_str()).collect();
    slots.sort_unstable();
    assert_eq!(slots, ["0", "1", "2"]);
    let one_more = place.run("k").args(SLOTS).job("true").run();
    let line = one_more
        .code(75)
        .one_line(&["all 3 slots of \"k\"", "pid "]);
    let named = |(running, _): &(Running, String)| {
        let pid = format!("pid {},", running.pid());
        line.stderr.contains(&pid)
    };
    assert!(held.iter().any(named), "{}", line.stderr);
    let rows = status(place);
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (&row["slot"], &row["slots"]))
        .collect();
    assert_eq!(
        format!("{shown:?}"),
        "[(Number(0), Number(3)), (Number(1), Number(3)), (Number(2), Number(3))]"
    );
    let table = place.dblock().args(["status", "k"]).run().code(0);
    for slot in ["SLOT", "0 of 3", "1 of 3", "2 of 3"] {
        assert!(table.text().contains(slot), "{}", table.text());
    }

    // A slot that was given back is the next one's.
    let (running, slot) = held.remove(1);
    running.signal(SIGTERM);
    running.wait().fails();
    let next = place.run("k").args(SLOTS).job("echo $DBLOCK_SLOT").run();
    next.code(0).quiet().stdout(format!("{slot}\n"));
    gate.open();
    for (running, _) in held {
        running.wait().code(0).quiet();
    }
    place.assert_free("k");
}

fn another_number_of_slots_is_refused(place: &Place) {
    let gate = place.gate();
    let mut held = Vec::new();
    // One slot is free at first, then none.
    for _ in 0..2 {
        held.push(hold(place, &["--slots", "2"], &gate).0);
        // By chance it is the same slot, or another one.
        for (number, waiting) in [("1", "--no-wait"), ("3", "--no-wait"), ("1", "--wait")] {
            for _ in 0..2 {
                let run = place
                    .run("k")
                    .args(["--slots", number, waiting])
                    .job("echo ran");
                let asked = format!("--slots {number}");
                let refused = run.run().code(78).stdout("");
                let line = refused.one_line(&["\"k\"", "--slots 2", &asked]);
                let named =
                    |running: &Running| line.stderr.contains(&format!("pid {},", running.pid()));
                assert!(held.iter().any(named), "{}", line.stderr);
            }
        }
        let acquire = ["acquire", "--key", "k", "--slots", "3"];
        let by_hand = place.dblock().args(acquire).run().code(78).stdout("");
        by_hand.one_line(&["\"k\"", "--slots 2", "--slots 3"]);
        assert_eq!(place.rows("k").len(), held.len(), "nothing is left of it");
    }
    gate.open();
    for running in held {
        running.wait().code(0).quiet();
    }
    place
        .run("k")
        .args(["--slots", "3"])
        .job("true")
        .run()
        .code(0)
        .quiet();
    place.assert_free("k");
}

/// The check value of CRC-32 is 0xcbf43926 for these digits; the others are
/// what zlib's crc32() says.
fn a_value_always_has_the_same_slot(place: &Place) {
    for (value, crc) in [
        ("123456789", 0xcbf4_3926_u32),
        ("web-1", 3_146_746_216),
        ("\u{e4}", 1_890_972_035),
        ("", 0),
    ] {
        for slots in [1, 2, 7, 1000] {
            let slots_text = slots.to_string();
            let run = place
                .run("k")
                .args(["--slots", &slots_text, "--slot-by", value]);
            let output = run.job("echo $DBLOCK_SLOT").run().code(0).quiet();
            output.stdout(format!("{}\n", crc % slots));
        }
    }
}

/// Two values and their slots among five.
const VALUES: [(&str, &str); 2] = [("a", "2"), ("b", "1")];

fn a_value_excludes_only_its_like(place: &Place) {
    let by = |value: &'static str| ["--slots", "5", "--slot-by", value];
    let gate = place.gate();
    let (first, slot) = hold(place, &by(VALUES[0].0), &gate);
    assert_eq!(slot, VALUES[0].1);
    let (second, slot) = hold(place, &by(VALUES[1].0), &gate);
    assert_eq!(slot, VALUES[1].1);
    for (holder, value) in [(&first, VALUES[0].0), (&second, VALUES[1].0)] {
        let again = place.run("k").args(by(value)).job("echo ran").run();
        let pid = format!("pid {},", holder.pid());
        let line = again.code(75).stdout("").one_line(&["\"k\"", &pid]);
        assert!(!line.stderr.contains("all 5 slots"), "{}", line.stderr);
    }
    // Who takes any slot takes another one.
    let any = place
        .run("k")
        .args(["--slots", "5"])
        .job("echo $DBLOCK_SLOT")
        .run();
    let any = any.code(0).quiet();
    let taken = [VALUES[0].1, VALUES[1].1];
    assert!(!taken.contains(&any.text().trim()), "{}", any.text());

    // Who waits for its slot is not helped by the others.
    let waiting = place.run("k").args(by(VALUES[0].0)).arg("--wait");
    let waiting = waiting.job("echo $DBLOCK_SLOT").start();
    await_waiter(place, &waiting);
    gate.open();
    first.wait().code(0).quiet();
    second.wait().code(0).quiet();
    waiting
        .wait()
        .code(0)
        .quiet()
        .stdout(format!("{}\n", VALUES[0].1));
    place.assert_free("k");
}

// Times for which the key stays closed.

fn at_least_keeps_the_key_closed(place: &Place) {
    const LENGTH: Duration = Duration::from_secs(4);
    let family = Family::new();
    let run = family
        .of(place.run("k"))
        .args(["--at-least", "4s", "--ttl", "2s"]);
    let begin = Instant::now();
    let output = run.job("echo $DBLOCK_OWNER").run().code(0).quiet();
    // dblock ends with its job, and nothing lingers.
    family.assert_gone();
    let row = place.row("k");
    assert_eq!(output.text().trim(), row.owner);
    let shown = status(place).remove(0);
    assert_eq!(shown["state"], "closing");
    assert_eq!(shown["owner"], row.owner.as_str());
    let left = shown["remaining_ms"].as_u64().expect("a number");
    assert!((1..=4000).contains(&left), "{shown}");
    let table = place.dblock().args(["status", "k"]).run().code(77);
    assert!(table.text().starts_with("STATE"), "{}", table.text());
    assert!(table.text().contains("closing"), "{}", table.text());

    let busy = place.run("k").job("echo ran").run().code(75).stdout("");
    busy.one_line(&["\"k\"", "closed", "pid "]);
    for command in ["renew", "release"] {
        let owner = place
            .dblock()
            .args([command, "--key", "k", "--owner", &row.owner]);
        owner.run().code(77).stdout("");
    }
    let waiting = place.run("k").args(["--wait", "20s"]).job("true").run();
    waiting.code(0).quiet();
    let took = begin.elapsed();
    assert!(took >= LENGTH, "{took:?}");
    // A waiter that would not look before its own pause is over looks later.
    assert!(took < LENGTH + Duration::from_secs(10), "{took:?}");
    place.assert_free("k");
}

fn at_least_counts_for_a_job_that_fails(place: &Place) {
    let run = place.run("k").args(["--at-least", AN_HOUR]);
    run.job("exit 3").run().code(3).quiet();
    assert_eq!(state(place), "closing");
    let release = ["force-release", "k", "--yes"];
    place.dblock().args(release).run().code(0);
    place.assert_free("k");

    // A job that takes longer leaves nothing.
    let run = place.run("k").args(["--at-least", "100ms"]);
    run.job("sleep 0.3").run().code(0).quiet();
    place.assert_free("k");
}

fn a_job_that_was_not_started_closes_nothing(place: &Place) {
    for (program, code) in [("/nowhere/to/be/found", 127), ("/", 126)] {
        let run = place
            .run("k")
            .args(["--at-least", AN_HOUR, "--lock-delay", AN_HOUR]);
        let run = run.args(["--once-per", AN_HOUR, "--", program]).run();
        run.code(code).one_line(&[program]);
        place.assert_free("k");
    }
}

// What has been done.

fn a_job_that_has_succeeded_is_skipped(place: &Place) {
    let once = |job: &str| place.run("k").args(["--once-per", AN_HOUR]).job(job);
    once("exit 1").run().code(1).quiet();
    place.assert_free("k");
    once("kill -KILL $$").run().fails();
    place.assert_free("k");
    let done = once("true").start();
    let pid = format!("pid {},", done.pid());
    done.wait().code(0).quiet();
    assert_eq!(state(place), "closing");
    place.dblock().args(["status", "k"]).run().code(77);

    let words = ["\"k\"", "done", &pid];
    once("echo ran").run().code(75).stdout("").one_line(&words);
    // It is not waited for: it would be done again.
    for patience in [&["--wait"][..], &["--wait", "1h"]] {
        let run = place.run("k").args(["--once-per", AN_HOUR]).args(patience);
        let skipped = run.job("echo ran").run().code(75).stdout("");
        skipped.one_line(&words);
    }
    let run = place
        .run("k")
        .args(["--once-per", "1s", "--busy-exit", "0", "--quiet"]);
    run.job("echo ran").run().code(0).stdout("").quiet();
    assert_eq!(place.query("SELECT * FROM dblock_waiter").len(), 0);

    // Who does not ask for it is not hindered.
    place
        .run("k")
        .job("echo ran")
        .run()
        .code(0)
        .quiet()
        .stdout("ran\n");
}

fn a_success_is_cleared_by_force_release(place: &Place) {
    let once = || place.run("k").args(["--once-per", AN_HOUR]).job("echo ran");
    once().run().code(0).quiet().stdout("ran\n");
    once().run().code(75).stdout("");
    let release = ["force-release", "k", "--yes"];
    place.dblock().args(release).run().code(0);
    place.assert_free("k");
    once().run().code(0).quiet().stdout("ran\n");

    // And it is over some time.
    let short = || place.run("j").args(["--once-per", "2s"]).job("echo ran");
    short().run().code(0).quiet().stdout("ran\n");
    wait::until("the success not to count any more", || {
        let output = short().run();
        if output.stdout == b"ran\n" {
            return Ok(output.code(0).quiet());
        }
        Err(output.code(75).stderr)
    })
    .took_at_most(wait::LIMIT);
}

/// What is taken and given back by hand is under the same terms.
fn terms_hold_for_what_is_held_by_hand(place: &Place) {
    let acquire = |options: &[&str]| {
        let acquire = place.dblock().args(["acquire", "--key", "k", "--json"]);
        acquire.args(options).run().code(0).quiet().json()
    };
    let release = |owner: &Value| {
        let owner = owner.as_str().expect("an owner id");
        let release = place
            .dblock()
            .args(["release", "--key", "k", "--owner", owner]);
        release.run()
    };
    let one = acquire(&["--slots", "2", "--slot-by", "123456789"]);
    assert_eq!(one["slot"], 0xcbf4_3926_u32 % 2);
    let two = acquire(&["--slots", "2"]);
    assert_eq!(two["slot"], 1);
    for grant in [&one, &two] {
        release(&grant["owner"]).code(0).quiet();
    }
    place.assert_free("k");

    let closing = acquire(&["--at-least", AN_HOUR]);
    release(&closing["owner"]).code(0).quiet();
    assert_eq!(state(place), "closing");
    release(&closing["owner"]).code(77);
    let force = ["force-release", "k", "--yes"];
    place.dblock().args(force).run().code(0);

    let done = acquire(&["--once-per", AN_HOUR]);
    release(&done["owner"]).code(0).quiet();
    let again = ["acquire", "--key", "k", "--wait", "--once-per", AN_HOUR];
    place
        .dblock()
        .args(again)
        .run()
        .code(75)
        .one_line(&["done"]);
    acquire(&[]);
}

// After an unclean end.

/// Waits for the key with a job that holds it, and checks that it was granted
/// at this time of the store's or later.
#[track_caller]
fn granted_not_before(place: &Place<'_>, moment: i64) {
    let gate = place.gate();
    let (running, _) = hold(place, &["--wait", "20s", "--ttl", "30s"], &gate);
    let granted = granted_at(place);
    assert!(granted >= moment, "{} ms early", moment - granted);
    gate.open();
    running.wait().code(0).quiet();
    place.assert_free("k");
}

/// Waits until the lease has expired, and checks what is seen of the key then.
#[track_caller]
fn assert_shut(place: &Place<'_>) {
    wait::until("the lease to expire", || match state(place).as_str() {
        "held" => Err("held".to_owned()),
        other => {
            assert_eq!(other, "closing");
            Ok(())
        }
    });
    let busy = place.run("k").job("echo ran").run().code(75).stdout("");
    busy.one_line(&["\"k\"", "closed"]);
}

fn a_crash_keeps_the_key_shut_for_the_lock_delay(place: &Place) {
    let family = Family::new();
    let run = family.of(place.run("k"));
    let run = run.args(["--ttl", "2s", "--lock-delay", "3s"]);
    let mut running = run.job("echo $$; exec sleep 30").start();
    running.job();
    family.guard(running.pid());
    for own in family.own() {
        own.process.signal(SIGKILL);
    }
    running.wait().fails();
    let row = place.row("k");
    assert_shut(place);
    assert_eq!(place.row("k"), row, "nobody was there to change it");
    granted_not_before(place, row.expire_at + 3000);
}

/// dblock sleeps through its lease, and the guard kills the job in time.
fn a_loss_keeps_the_key_shut_for_the_lock_delay(place: &Place) {
    let family = Family::new();
    let run = family.of(place.run("k"));
    let run = run.args(["--ttl", "2s", "--lock-delay", "4s"]);
    let mut running = run.job("echo $$; exec sleep 30").start();
    running.job();
    running.signal(SIGSTOP);
    running.process().wait_until_stopped();
    let row = place.row("k");
    family.dies_within(wait::LIMIT);
    assert_shut(place);
    running.signal(SIGCONT);
    running.wait().code(76).says(&["\"k\""]);
    // Whether a late renewal came first or not: the row stays.
    let left = place.row("k");
    assert_eq!((&left.owner, left.token), (&row.owner, row.token));
    granted_not_before(place, left.expire_at + 4000);
}

/// The network is cut for good: dblock loses its lease by time, and cannot
/// touch the row.
#[test]
fn a_cut_network_keeps_the_key_shut_for_the_lock_delay() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let url = place.database().url_at(proxy.port());
    let run = place.run("k").env("DBLOCK_URL", url);
    let run = run.args(["--ttl", "3s", "--lock-delay", "3s"]);
    let mut running = run.job("echo $$; exec sleep 30").start();
    let job = running.job();
    proxy.hold();
    let row = place.row("k");
    running.wait().code(76).says(&["\"k\""]);
    assert!(!job.is_alive());
    let left = place.row("k");
    assert_eq!((&left.owner, left.token), (&row.owner, row.token));
    assert_shut(&place);
    granted_not_before(&place, left.expire_at + 3000);
}

fn a_clean_end_knows_no_lock_delay(place: &Place) {
    for (job, code) in [("true", 0), ("exit 3", 3)] {
        let run = place.run("k").args(["--lock-delay", AN_HOUR]);
        run.job(job).run().code(code).quiet();
        place.assert_free("k");
    }
    let run = place.run("k").args(["--lock-delay", AN_HOUR]);
    let mut running = run.job("echo $$; exec sleep 30").start();
    running.job();
    running.signal(SIGTERM);
    running.wait().fails();
    place.assert_free("k");
}

// Blocks.

fn block(place: &Place<'_>, options: &[&str]) -> Dblock {
    place.dblock().args(["block", "k"]).args(options)
}

fn unblock(place: &Place<'_>) -> Dblock {
    place.dblock().args(["unblock", "k"])
}

fn a_blocked_key_is_busy_and_its_holder_goes_on(place: &Place) {
    let gate = place.gate();
    let (holder, _) = hold(place, &["--ttl", "2s"], &gate);
    block(place, &["--reason", "new disks"])
        .run()
        .code(0)
        .stdout("")
        .quiet();
    let words = ["\"k\"", "blocked", "new disks"];
    place
        .run("k")
        .job("echo ran")
        .run()
        .code(75)
        .stdout("")
        .one_line(&words);
    let renewals = place.rows("k")[0].renewals;
    wait::until("a renewal under the block", || {
        let rows = place.rows("k");
        if rows[0].renewals > renewals {
            Ok(())
        } else {
            Err(format!("{rows:?}"))
        }
    });
    gate.open();
    holder.wait().code(0).quiet();

    // Nobody comes after it, by whatever way.
    let acquire = place.dblock().args(["acquire", "--key", "k"]).run();
    acquire.code(75).stdout("").one_line(&words);
    let slots = place.run("k").args(["--slots", "4"]).job("echo ran").run();
    slots.code(75).stdout("").one_line(&words);
    let late = place.run("k").args(["--wait", "1s"]).job("echo ran").run();
    late.code(75).stdout("").one_line(&words);
    place.run("other").job("true").run().code(0).quiet();
    assert_eq!(place.rows("k").len(), 1, "what was tried left nothing");

    unblock(place).run().code(0).stdout("").quiet();
    place.assert_free("k");
    unblock(place)
        .run()
        .code(77)
        .stdout("")
        .one_line(&["\"k\"", "not blocked"]);
    place
        .run("k")
        .job("echo ran")
        .run()
        .code(0)
        .quiet()
        .stdout("ran\n");
}

fn a_waiting_run_starts_after_unblock(place: &Place) {
    block(place, &[]).run().code(0).quiet();
    let waiting = place.run("k").args(["--wait"]).job("echo ran").start();
    await_waiter(place, &waiting);
    waiting.assert_running();
    unblock(place).run().code(0).quiet();
    waiting.wait().code(0).quiet().stdout("ran\n");
    place.assert_free("k");
}

fn a_block_ends_by_itself(place: &Place) {
    const LENGTH: Duration = Duration::from_secs(2);
    let begin = Instant::now();
    place
        .dblock()
        .args(["block", "--key", "k", "--for", "2s"])
        .run()
        .code(0)
        .quiet();
    let waiting = place.run("k").arg("--wait").job("echo ran").run();
    waiting.code(0).quiet().stdout("ran\n");
    let took = begin.elapsed();
    assert!(took >= LENGTH, "{took:?}");
    assert!(took < LENGTH + Duration::from_secs(10), "{took:?}");
    unblock(place).run().code(77);
    place.assert_free("k");
}

fn a_block_is_shown(place: &Place) {
    block(place, &["--reason", "new disks"])
        .run()
        .code(0)
        .quiet();
    let row = status(place).remove(0);
    assert_eq!(row["state"], "blocked");
    assert_eq!(row["kind"], "block");
    assert_eq!(row["note"], "new disks");
    for name in ["slot", "slots", "remaining_ms", "command"] {
        assert!(row[name].is_null(), "{name}: {row}");
    }
    assert_eq!(row["waiters"], Value::Array(Vec::new()));
    let table = place.dblock().args(["status", "k"]).run().code(77);
    for word in ["blocked", "no end", "new disks"] {
        assert!(table.text().contains(word), "{}", table.text());
    }
    // Repeating it changes it.
    block(place, &["--for", "1h"]).run().code(0).quiet();
    let row = status(place).remove(0);
    assert!(row["note"].is_null(), "{row}");
    let left = row["remaining_ms"].as_u64().expect("a number");
    assert!((3_500_000..=3_600_000).contains(&left), "{row}");
}

fn a_block_is_not_for_force_release(place: &Place) {
    let force = || place.dblock().args(["force-release", "k", "--yes"]).run();
    block(place, &[]).run().code(0).quiet();
    force().code(77).stdout("");
    assert_eq!(state(place), "blocked");
    unblock(place).run().code(0);
    let acquire = ["acquire", "--key", "k", "--ttl", "10m"];
    place.dblock().args(acquire).run().code(0);
    block(place, &[]).run().code(0).quiet();
    force().code(0);
    assert_eq!(state(place), "blocked");
}

#[test]
fn a_block_outlives_a_restart_of_the_server() {
    let server = Server::start();
    let place = Place::on(&server);
    block(&place, &["--reason", "new disks"])
        .run()
        .code(0)
        .quiet();
    server.kill();
    server.start_again();
    let busy = place.run("k").job("echo ran").run().code(75).stdout("");
    busy.one_line(&["\"k\"", "blocked", "new disks"]);
    unblock(&place).run().code(0).quiet();
    place.run("k").job("true").run().code(0).quiet();
}

// Values.

fn values_out_of_range_are_usage_errors(place: &Place) {
    for options in [
        &["--slots", "0"][..],
        &["--slots", "1001"],
        &["--slots", "1.5"],
        &["--slots", "65536"],
        &["--slots", "x"],
        &["--slots", ""],
        &["--at-least", "31d"],
        &["--at-least", "x"],
        &["--once-per", "0s"],
        &["--once-per", "367d"],
        &["--lock-delay", "31d"],
        &["--wake", "never"],
    ] {
        let run = place.run("k").args(options).job("echo ran").run();
        run.code(64).stdout("").says(&[options[0]]);
    }
    let slot_by = place
        .run("k")
        .args(["--slot-by", "x"])
        .job("echo ran")
        .run();
    slot_by.code(64).stdout("").one_line(&["--slots"]);
    for options in [&["--for", "0s"][..], &["--for", "367d"], &["--for", "x"]] {
        block(place, options)
            .run()
            .code(64)
            .stdout("")
            .says(&["--for"]);
    }
    for command in ["block", "unblock"] {
        place.dblock().arg(command).run().code(64).stdout("");
        place
            .dblock()
            .args([command, " k"])
            .run()
            .code(64)
            .stdout("");
        place
            .dblock()
            .args([command, "k", "-k", "k"])
            .run()
            .code(64)
            .stdout("");
    }
    place.assert_free("k");
}

fn the_largest_values_are_taken(place: &Place) {
    let run = place
        .run("k")
        .args(["--slots", "1000", "--at-least", "30d"]);
    let run = run.args(["--once-per", "366d", "--lock-delay", "30d"]);
    run.job("true").run().code(0).quiet();
    let row = status(place).remove(0);
    let left = row["remaining_ms"].as_u64().expect("a number");
    let month = 30 * 24 * 3600 * 1000;
    assert!((month - 60_000..=month).contains(&left), "{row}");
    block(place, &["--for", "366d"]).run().code(0).quiet();
    assert_eq!(status(place).len(), 2);
}
