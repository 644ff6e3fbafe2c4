//! Clocks that are wrong, and clocks that are stepped.
//!
//! Only the server's UTC clock decides whether a lease has expired; the holder
//! counts its own on the boot-time clock of its host. So nothing that happens
//! to the time of day of a host changes anything, nor does a time zone.
//!
//! The server's own clock is another matter, and has limits:
//!
//! - Steps by less than what a lease has left change nothing, if renewals go on.
//! - A step forward beyond what is left ends every lease at once. A second
//!   holder may be let in until the first one hears of it at its next renewal.
//!   The first one is then stopped, ends with 76 and changes nothing of the
//!   second one's; the second one's token is the larger one.
//! - A step back makes each lease longer by as much until it is renewed. One
//!   that nobody renews is kept for so long.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::support::dblock::Dblock;
use crate::support::faketime::{FalseClock, within_uptime};
use crate::support::on_every_store;
use crate::support::place::Place;
use crate::support::running::Running;
use crate::support::server::Server;
use crate::support::wait;

on_every_store!(
    d1_a_host_whose_clock_is_wrong_stays_out,
    d1_a_step_of_a_hosts_clock_changes_nothing,
);

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// How far two looks at a clock may lie apart on a busy machine.
const SLACK_MS: i64 = MINUTE_MS;

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(now.expect("it is after 1970").as_millis()).expect("a time fits")
}

/// Checks that a program under the clock sees a time of day that is off by
/// this much; without that a test would prove nothing.
#[track_caller]
fn assert_off_by(shown_s: &str, offset_ms: i64) {
    let shown: i64 = shown_s.trim().parse().expect("seconds");
    let off = shown * 1000 - now_ms();
    assert!(
        (off - offset_ms).abs() < SLACK_MS,
        "off by {off} ms, not by {offset_ms}"
    );
}

/// Returns what `status` says of a key's only slot. The key is not named to
/// it, as the status of the call would then depend on the answer.
#[track_caller]
fn status(call: Dblock, key: &str) -> Value {
    let rows = call.args(["status", "--json"]).run().code(0).json();
    let mut found = rows.as_array().into_iter().flatten();
    let found = found.find(|row| row["key"] == key);
    found
        .unwrap_or_else(|| panic!("no {key:?} in {rows}"))
        .clone()
}

#[track_caller]
fn number(of: &Value, field: &str) -> i64 {
    let number = of[field].as_i64();
    number.unwrap_or_else(|| panic!("no number {field} in {of}"))
}

/// Checks what `status` says of a lease that was taken a moment ago.
#[track_caller]
fn assert_fresh(row: &Value, ttl_ms: i64) {
    assert_eq!(row["state"], "held", "{row}");
    let (left, held) = (number(row, "remaining_ms"), number(row, "held_ms"));
    assert!(0 < left && left <= ttl_ms, "{row}");
    assert!((0..SLACK_MS).contains(&held), "{row}");
}

/// Checks that the table of `status` gives the only lease's age in seconds.
#[track_caller]
fn assert_fresh_for_people(call: Dblock) {
    let table = call.args(["status", "k"]).run().code(0);
    let age = table.text().split_once("s ago)").map(|(before, _)| before);
    let age = age.and_then(|before| before.rsplit_once('(')?.1.parse::<u32>().ok());
    assert!(age.is_some(), "{}", table.text());
}

fn d1_a_host_whose_clock_is_wrong_stays_out(place: &Place) {
    let clock = FalseClock::new();
    let right = || place.dblock();
    let wrong = || clock.on_the_host_of(place.dblock());
    let step = within_uptime(10 * MINUTE_MS);
    for offset in [step, -step] {
        clock.set_offset_ms(offset);
        let date = clock.on_the_host_of(Dblock::program("date").arg("+%s"));
        assert_off_by(date.run().code(0).text(), offset);
        let orders: [[&dyn Fn() -> Dblock; 2]; 2] = [[&right, &wrong], [&wrong, &right]];
        for [first, second] in orders {
            let gate = place.gate();
            let lease = ["run", "--key", "k", "--ttl", "30s"];
            let job = format!("echo $$; {}; exit 5", gate.wait());
            let mut running = first().args(lease).job(&job).start();
            running.job();
            let held = place.row("k");
            let out = second().args(lease).args(["--", "true"]).run();
            out.code(75).one_line(&["\"k\""]);
            second().args(["acquire", "--key", "k"]).run().code(75);
            assert_fresh(&status(second(), "k"), 30_000);
            assert_fresh_for_people(second());
            let still = place.row("k");
            assert_eq!((still.owner, still.token), (held.owner, held.token));
            running.assert_running();
            gate.open();
            running.wait().code(5).quiet();
            second()
                .args(lease)
                .args(["--", "true"])
                .run()
                .code(0)
                .quiet();
            place.assert_free("k");
        }
    }
}

fn d1_a_step_of_a_hosts_clock_changes_nothing(place: &Place) {
    let (clock, gate, report) = (FalseClock::new(), place.gate(), place.file("report"));
    let job = format!("echo $$; {}; date +%s; exit 5", gate.wait());
    let run = clock.on_the_host_of(place.run("k"));
    let run = run.args(["--ttl", "3s", "--timeout", "30m", "--report"]);
    let mut running = run.arg(&report).job(&job).start();
    running.job();
    let waiter = clock.on_the_host_of(place.run("k"));
    let waiter = waiter
        .args(["--wait", "30m"])
        .job("date +%s; exit 6")
        .start();
    place.wait_until_reached_by(&waiter);
    let step = within_uptime(HOUR_MS);
    for offset in [step, -step] {
        clock.set_offset_ms(offset);
        // The first answer may be to a question from before.
        place.wait_for_renewal("k");
        place.wait_for_renewal("k");
        running.assert_running();
        waiter.assert_running();
    }
    gate.open();
    let output = running.wait().code(5).quiet();
    let date = output.text().lines().last().expect("the time of day");
    assert_off_by(date, -step);
    let waited = waiter.wait().code(6).quiet();
    assert_off_by(waited.text(), -step);
    let report = fs::read(&report).expect("the report is there");
    let report: Value = serde_json::from_slice(&report).expect("the report is JSON");
    let held = number(&report, "held_ms");
    let most = i64::try_from(output.took.as_millis()).expect("a time fits");
    assert!(0 < held && held <= most, "held {held} ms of {most}");
    place.assert_free("k");
}

/// A zone whose clocks go forward and back, at 1 o'clock UTC.
const ZONE: &str = "Europe/Berlin";
/// 29 March 2026: 2 o'clock becomes 3 o'clock.
const SPRING_S: i64 = 1_774_746_000;
/// 25 October 2026: 3 o'clock becomes 2 o'clock once more.
const AUTUMN_S: i64 = 1_792_890_000;

/// Returns how many hours the server's sessions are ahead of UTC.
#[track_caller]
fn ahead(place: &Place<'_>) -> String {
    let mut rows = place.query("SELECT TIMESTAMPDIFF(HOUR, UTC_TIMESTAMP(), NOW())");
    rows.remove(0).remove(0)
}

/// Returns the server's time in seconds since 1970 UTC.
#[track_caller]
fn server_s(place: &Place<'_>) -> i64 {
    let rows = place.query("SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())");
    rows[0][0].parse().expect("seconds")
}

/// Checks that the moment of a grant is told by the server's clock.
#[track_caller]
fn assert_acquired_about(row: &Value, moment_s: i64) {
    let text = row["acquired_at"].as_str().unwrap_or_default();
    let time = humantime::parse_rfc3339(text).unwrap_or_else(|error| panic!("{row}: {error}"));
    let since = time.duration_since(UNIX_EPOCH).expect("it is after 1970");
    let seconds = i64::try_from(since.as_secs()).expect("a time fits");
    assert!((seconds - moment_s).abs() < SLACK_MS / 1000, "{row}");
}

/// Holds leases while the clocks of the server's time zone are changed, which
/// makes them this many hours ahead of UTC, before and after.
fn leases_live_through(change_s: i64, hours: [&str; 2]) {
    let clock = FalseClock::new();
    let server = Server::start_under(&clock, ZONE);
    let place = Place::on(&server);
    clock.set_to(change_s - 4);
    assert_eq!(ahead(&place), hours[0]);
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = place.run("k").args(["--ttl", "3s"]).job(&job).start();
    running.job();
    let began = Instant::now();
    let by_hand = ["acquire", "--key", "by hand", "--ttl", "5s"];
    place.dblock().args(by_hand).run().code(0);
    let waiter = place.run("by hand").args(["--wait", "5m"]);
    let waiter = waiter.args(["--", "true"]).start();
    for (key, ttl_ms) in [("k", 3000), ("by hand", 5000)] {
        let row = status(place.dblock(), key);
        assert_fresh(&row, ttl_ms);
        assert_acquired_about(&row, change_s);
    }
    wait::until("the change", || {
        place.run("k").args(["--", "true"]).run().code(75);
        running.assert_running();
        // Longer than any lease that is not renewed after the change.
        let now = server_s(&place);
        if now >= change_s + 4 {
            Ok(())
        } else {
            Err(format!("it is {now}"))
        }
    });
    assert_eq!(ahead(&place), hours[1]);
    let row = status(place.dblock(), "k");
    assert_fresh(&row, 3000);
    assert_acquired_about(&row, change_s);
    waiter.wait().code(0).quiet();
    let expired = began.elapsed();
    assert!(expired >= Duration::from_millis(4900), "{expired:?}");
    gate.open();
    running.wait().code(5).quiet();
    place.assert_free("k");
}

#[test]
fn d1_leases_live_through_the_hour_that_is_left_out() {
    leases_live_through(SPRING_S, ["1", "2"]);
}

#[test]
fn d1_leases_live_through_the_hour_that_comes_twice() {
    leases_live_through(AUTUMN_S, ["2", "1"]);
}

/// Starts a job that makes a file, as soon as it is let in.
fn waiter(place: &Place<'_>, marker: &Path) -> Running {
    let run = place
        .run("k")
        .args(["--wait", "5m", "--", "touch"])
        .arg(marker);
    run.start()
}

#[test]
fn d1_small_steps_of_the_servers_clock_change_nothing() {
    let clock = FalseClock::new();
    let server = Server::start_under(&clock, ZONE);
    let place = Place::on(&server);
    let (gate, marker) = (place.gate(), place.file("second"));
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = place.run("k").args(["--ttl", "10s"]).job(&job).start();
    running.job();
    let second = waiter(&place, &marker);
    for offset in [500, -500, 2000, -2000] {
        clock.set_offset_ms(offset);
        let left = place.left_ms("k");
        assert!(left > 0, "{left} ms left");
        place.wait_for_renewal("k");
        let left = place.left_ms("k");
        assert!(0 < left && left <= 10_000, "{left} ms left");
        running.assert_running();
        assert!(!marker.exists(), "two at once");
    }
    assert!(!marker.exists(), "two at once");
    gate.open();
    running.wait().code(5).quiet();
    second.wait().code(0).quiet();
    place.assert_free("k");
}

#[test]
fn d1_a_server_clock_set_forward_is_survived_if_nobody_else_wants_the_key() {
    let clock = FalseClock::new();
    let server = Server::start_under(&clock, ZONE);
    let place = Place::on(&server);
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = place.run("k").args(["--ttl", "6s"]).job(&job).start();
    running.job();
    let before = place.row("k");
    clock.set_offset_ms(HOUR_MS);
    place.wait_for_renewal("k");
    place.wait_for_renewal("k");
    let left = place.left_ms("k");
    assert!(0 < left && left <= 6000, "{left} ms left");
    let after = place.row("k");
    assert_eq!((after.owner, after.token), (before.owner, before.token));
    place.run("k").args(["--", "true"]).run().code(75);
    gate.open();
    running.wait().code(5).quiet();
    place.assert_free("k");
}

/// The limit: nothing can be done about it, and the documents say so.
#[test]
fn d1_a_server_clock_set_forward_beyond_the_lease_lets_a_second_holder_in() {
    let clock = FalseClock::new();
    let server = Server::start_under(&clock, ZONE);
    let place = Place::on(&server);
    let mut first = place.run("k").args(["--ttl", "30s"]);
    first = first.job("echo $$; sleep 60 & echo $!; wait; :");
    let mut first = first.start();
    let tree = first.processes(2);
    let before = place.row("k");
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 6", gate.wait());
    // After a renewal there are 10 s until the first one asks again.
    place.wait_for_renewal("k");
    clock.set_offset_ms(HOUR_MS);
    assert_eq!(status(place.dblock(), "k")["state"], "expired");
    let mut second = place.run("k").job(&job).start();
    second.job();
    let successor = place.row("k");
    assert_ne!(successor.owner, before.owner);
    assert!(
        successor.token > before.token,
        "{successor:?} after {before:?}"
    );
    first.assert_running();
    for command in ["renew", "release"] {
        let by_hand = place.dblock().args([command, "--key", "k"]);
        by_hand
            .args(["--owner", &before.owner])
            .run()
            .code(77)
            .one_line(&["\"k\""]);
        let now = place.row("k");
        assert_eq!(
            (now.owner, now.token),
            (successor.owner.clone(), successor.token)
        );
    }
    first.wait().code(76).one_line(&["\"k\""]);
    assert!(
        !tree.iter().any(|process| process.is_alive()),
        "{tree:?} lives"
    );
    let now = place.row("k");
    assert_eq!((now.owner, now.token), (successor.owner, successor.token));
    assert!(place.left_ms("k") > 0);
    gate.open();
    second.wait().code(6).quiet();
    place.assert_free("k");
}

/// The limit in the other direction: a lease that is renewed is right again
/// soon; one that nobody renews is kept too long, and an owner can free it.
#[test]
fn d1_a_server_clock_set_back_makes_leases_longer_until_they_are_renewed() {
    let clock = FalseClock::new();
    let server = Server::start_under(&clock, ZONE);
    let place = Place::on(&server);
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = place.run("k").args(["--ttl", "6s"]).job(&job).start();
    running.job();
    let by_hand = ["acquire", "--key", "by hand", "--ttl", "30s"];
    let owner = place.dblock().args(by_hand).run().code(0);
    let owner = owner.text().trim();
    clock.set_offset_ms(-HOUR_MS);
    place.wait_for_renewal("k");
    let row = status(place.dblock(), "k");
    // The key was taken when the clock showed more.
    assert_eq!(row["state"], "held", "{row}");
    let left = number(&row, "remaining_ms");
    assert!(0 < left && left <= 6000, "{row}");
    let held = number(&row, "held_ms");
    assert!((0..SLACK_MS).contains(&held), "{row}");
    let left = place.left_ms("by hand");
    assert!(left > HOUR_MS - SLACK_MS, "{left} ms left");
    place.run("by hand").args(["--", "true"]).run().code(75);
    let release = place
        .dblock()
        .args(["release", "--key", "by hand", "--owner"]);
    release.arg(owner).run().code(0);
    place.assert_free("by hand");
    gate.open();
    running.wait().code(5).quiet();
    place.assert_free("k");
}
