//! `acquire`, `renew`, `release` and `status`: for scripts that hold a lock by
//! hand.

use std::time::Duration;

use crate::support::dblock::Dblock;
use crate::support::on_every_store;
use crate::support::place::{Place, THIEF};
use crate::support::server::free_port;
use crate::support::wait;

on_every_store!(
    h5_acquire_prints_the_owner_and_nothing_else,
    h5_a_busy_acquire_prints_nothing_on_standard_output,
    h5_an_owner_that_cannot_be_printed_is_given_back,
    h5_acquire_as_json,
    h1_a_lease_is_renewed_and_released,
    h1_an_expired_lease_is_not_revived,
    h1_what_was_never_held_is_77,
    h1_what_another_owner_holds_is_77,
    h1_status_of_free_and_held_keys,
    acquire_waits_for_an_expiry,
    check_by_hand,
    h2_force_release_removes_a_lease_held_by_hand,
    h2_force_release_asks_first_and_hits_no_other,
);

/// Acquires a key by hand and returns the owner id.
#[track_caller]
fn acquire(place: &Place, key: &str, ttl: &str) -> String {
    let output = place
        .dblock()
        .args(["acquire", "--key", key, "--ttl", ttl])
        .run();
    output.code(0).quiet().text().trim_end().to_owned()
}

fn by_hand(place: &Place, command: &str, owner: &str) -> Dblock {
    place
        .dblock()
        .args([command, "--key", "k", "--owner", owner])
}

fn h5_acquire_prints_the_owner_and_nothing_else(place: &Place) {
    for (key, option) in [("plain", "--ttl=60s"), ("talkative", "--verbose")] {
        let acquire = place.dblock().args(["acquire", "--key", key, option]);
        let output = acquire.run().code(0);
        let row = place.row(key);
        assert_eq!(output.text(), format!("{}\n", row.owner));
        assert!(uuid::Uuid::try_parse(&row.owner).is_ok(), "{row:?}");
        assert_eq!(row.kind, "acquire");
    }
    let script = "set -e; o=$(dblock acquire --key s); echo \"$o\" | wc -c; \
                  dblock release --key s --owner \"$o\" >&2";
    place.shell(script).run().code(0).stdout("37\n").quiet();
    place.assert_free("s");
}

fn h5_a_busy_acquire_prints_nothing_on_standard_output(place: &Place) {
    acquire(place, "k", "60s");
    let busy = || place.dblock().args(["acquire", "--key", "k"]);
    busy()
        .run()
        .code(75)
        .stdout("")
        .one_line(&["\"k\" is held by "]);
    busy().arg("--quiet").run().code(75).stdout("").quiet();
    busy()
        .args(["--busy-exit", "9"])
        .run()
        .code(9)
        .stdout("")
        .one_line(&["held"]);
}

fn h5_an_owner_that_cannot_be_printed_is_given_back(place: &Place) {
    for sink in [">/dev/full", ">&-"] {
        let acquire = place.shell(&format!("dblock acquire --key k {sink} || exit 9"));
        acquire.run().code(9);
        place.assert_free("k");
    }
    let acquire = place
        .dblock()
        .args(["acquire", "--key", "k"])
        .stdout_that_nobody_reads();
    acquire.run().fails();
    place.assert_free("k");
}

fn h5_acquire_as_json(place: &Place) {
    let output = place
        .dblock()
        .args(["acquire", "--key", "k", "--ttl", "60s", "--json"])
        .run();
    let json = output.code(0).quiet().json();
    let row = place.row("k");
    let mut fields: Vec<_> = json.as_object().expect("an object").keys().collect();
    fields.sort();
    assert_eq!(
        fields,
        ["key", "owner", "remaining_ms", "slot", "token", "ttl_ms"]
    );
    assert_eq!(json["key"], "k");
    assert_eq!(json["slot"], 0);
    assert_eq!(json["owner"], row.owner);
    assert_eq!(json["token"], row.token);
    assert_eq!(json["ttl_ms"], 60_000);
    let remaining = json["remaining_ms"].as_u64().expect("a number");
    assert!((30_000..=60_000).contains(&remaining), "{remaining}");
}

fn h1_a_lease_is_renewed_and_released(place: &Place) {
    let owner = acquire(place, "k", "30s");
    by_hand(place, "renew", &owner)
        .args(["--ttl", "10m"])
        .run()
        .code(0)
        .quiet();
    let left = place.left_ms("k");
    assert!((300_000..=600_000).contains(&left), "{left} ms left");
    assert_eq!(place.row("k").ttl_ms, 600_000);
    by_hand(place, "release", &owner).run().code(0).quiet();
    place.assert_free("k");
    by_hand(place, "release", &owner)
        .run()
        .code(77)
        .stdout("")
        .one_line(&["\"k\"", "free"]);
}

fn wait_for_expiry(place: &Place) {
    wait::until("the lease to expire", || match place.left_ms("k") {
        ..=0 => Ok(()),
        left => Err(format!("{left} ms left")),
    });
}

fn h1_an_expired_lease_is_not_revived(place: &Place) {
    let owner = acquire(place, "k", "1s");
    wait_for_expiry(place);
    let expired = place.row("k");
    let renew = by_hand(place, "renew", &owner).args(["--ttl", "10s"]);
    renew
        .run()
        .code(77)
        .stdout("")
        .one_line(&["\"k\"", "expired"]);
    assert_eq!(place.row("k"), expired);
    place.dblock().args(["status", "k"]).run().code(77);
    by_hand(place, "release", &owner)
        .run()
        .code(77)
        .stdout("")
        .one_line(&["\"k\"", "expired"]);
    // It stands in nobody's way.
    place.run("k").args(["--", "true"]).run().code(0).quiet();
}

fn h1_what_was_never_held_is_77(place: &Place) {
    for command in ["renew", "release"] {
        by_hand(place, command, THIEF)
            .run()
            .code(77)
            .stdout("")
            .one_line(&["\"k\"", "free"]);
        place.assert_free("k");
    }
}

fn h1_what_another_owner_holds_is_77(place: &Place) {
    acquire(place, "k", "60s");
    let held = place.row("k");
    for command in ["renew", "release"] {
        by_hand(place, command, THIEF)
            .run()
            .code(77)
            .stdout("")
            .one_line(&["\"k\"", "held"]);
        assert_eq!(place.row("k"), held);
    }
}

fn h1_status_of_free_and_held_keys(place: &Place) {
    acquire(place, "held", "60s");
    let status = |keys: &[&str]| place.dblock().arg("status").args(keys).run();
    status(&[]).code(0).quiet();
    status(&["held"]).code(0).quiet();
    status(&["free"]).code(77);
    status(&["held", "free"]).code(77);

    let json = place
        .dblock()
        .args(["status", "--json"])
        .run()
        .code(0)
        .quiet()
        .json();
    let row = place.row("held");
    assert_eq!(json.as_array().map(Vec::len), Some(1), "{json}");
    let json = &json[0];
    assert_eq!(json["key"], "held");
    assert_eq!(json["owner"], row.owner);
    assert_eq!(json["token"], row.token);
    assert_eq!(
        (&json["state"], &json["kind"]),
        (&"held".into(), &"acquire".into())
    );
    assert_eq!(json["ttl_ms"], 60_000);
    let times = ["remaining_ms", "held_ms", "renewals", "slot", "slots"];
    assert!(times.iter().all(|name| json[name].is_u64()), "{json}");
}

fn acquire_waits_for_an_expiry(place: &Place) {
    acquire(place, "k", "1s");
    let output = place
        .dblock()
        .args(["acquire", "--key", "k", "--wait", "20s"])
        .run();
    let output = output.code(0).quiet().took_at_most(Duration::from_secs(10));
    assert_eq!(output.text().trim_end(), place.row("k").owner);
}

fn check_by_hand(place: &Place) {
    let owner = acquire(place, "k", "60s");
    by_hand(place, "check", &owner).run().code(0).quiet();
    by_hand(place, "check", &owner)
        .args(["--min-left", "10s"])
        .run()
        .code(0)
        .quiet();
    by_hand(place, "check", &owner)
        .args(["--min-left", "2m"])
        .run()
        .code(77);
    by_hand(place, "check", THIEF)
        .run()
        .code(77)
        .one_line(&["\"k\"", "held"]);
    by_hand(place, "release", &owner).run().code(0).quiet();
    by_hand(place, "check", &owner)
        .run()
        .code(77)
        .one_line(&["\"k\"", "free"]);

    let owner = acquire(place, "k", "1s");
    wait_for_expiry(place);
    by_hand(place, "check", &owner)
        .run()
        .code(77)
        .one_line(&["\"k\"", "expired"]);
}

fn h2_force_release_removes_a_lease_held_by_hand(place: &Place) {
    let owner = acquire(place, "k", "60s");
    let force = || place.dblock().args(["force-release", "k", "--yes"]);
    let output = force().run().code(0);
    let said = format!("{}{}", output.text(), output.stderr);
    assert!(
        said.contains("\"k\"") && said.contains(&owner),
        "what was removed: {said}"
    );
    place.assert_free("k");
    force().run().code(77);
    by_hand(place, "renew", &owner)
        .run()
        .code(77)
        .one_line(&["free"]);
}

fn h2_force_release_asks_first_and_hits_no_other(place: &Place) {
    acquire(place, "k", "60s");
    let held = place.row("k");
    let force = || place.dblock().args(["force-release", "k"]);
    force().run().code(64).stdout("").one_line(&["--yes"]);
    force().args(["--yes", "--owner", THIEF]).run().code(77);
    assert_eq!(place.row("k"), held);
    force()
        .args(["--yes", "--owner", &held.owner])
        .run()
        .code(0);
    place.assert_free("k");
}

#[test]
fn h5_acquire_without_a_server_prints_nothing_on_standard_output() {
    let url = format!("mysql://user@127.0.0.1:{}/locks", free_port());
    let script = "set -e; o=$(dblock acquire --key k); echo not reached";
    Dblock::shell(script)
        .env("DBLOCK_URL", url)
        .run()
        .code(69)
        .stdout("")
        .one_line(&[]);
}
