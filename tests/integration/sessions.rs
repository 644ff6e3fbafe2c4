//! dblock means the same whatever a server or a proxy presets in a session,
//! and also if every packet is answered by another session.
//!
//! One scenario goes once through all that a lease can do. It runs under each
//! setting; that of every statement's text is in `store_contract`.

use std::thread;

use serde_json::Value;

use crate::support::dblock::{Dblock, Output};
use crate::support::middleman::{Backend, Behind, Middleman};
use crate::support::place::{Place, THIEF};
use crate::support::running::Running;
use crate::support::server::{Server, query_on};
use crate::support::wait;

/// A key that no character set but one of Unicode's can hold.
const KEY: &str = "schlüssel-日本-🔒";

/// Somebody who calls dblock, by a certain way to the database.
struct Caller<'a> {
    place: &'a Place<'a>,
    url: String,
}

impl<'a> Caller<'a> {
    fn direct(place: &'a Place<'a>) -> Self {
        let url = place.url();
        Self { place, url }
    }

    fn through(place: &'a Place<'a>, proxy: &Middleman) -> Self {
        let url = place.database().url_at(proxy.port());
        Self { place, url }
    }

    fn dblock(&self, words: &[&str]) -> Dblock {
        let dblock = self.place.dblock().env("DBLOCK_URL", &self.url);
        dblock.args(words)
    }

    #[track_caller]
    fn call(&self, words: &[&str], status: i32) -> Output {
        self.dblock(words).run().code(status)
    }

    /// Takes a key and returns the owner id.
    #[track_caller]
    fn acquire(&self, key: &str, ttl: &str) -> String {
        let output = self.call(&["acquire", "--key", key, "--ttl", ttl], 0);
        output.quiet().text().trim_end().to_owned()
    }

    /// Renews or releases.
    #[track_caller]
    fn by_hand(&self, command: &str, key: &str, owner: &str, status: i32) {
        self.call(&[command, "--key", key, "--owner", owner], status);
    }

    /// Returns what `status` says of a key that is held or was held.
    #[track_caller]
    fn look(&self, key: &str) -> Value {
        let output = self.dblock(&["status", "--json", key]).run();
        let rows = output.json();
        assert_eq!(rows.as_array().map(Vec::len), Some(1), "{output:?}");
        rows[0].clone()
    }
}

/// Goes through the life of a lease: taken, busy, renewed, lost, expired, taken
/// over, released, and seen from outside all the while.
fn the_life_of_a_lease(caller: &Caller<'_>) {
    let place = caller.place;
    // Held, and nobody else gets it.
    let owner = caller.acquire(KEY, "60s");
    let held = caller.look(KEY);
    assert_eq!(held["key"], KEY);
    assert_eq!(held["owner"], owner.as_str());
    assert_eq!(held["state"], "held");
    assert_lasts(&held, 60);
    assert_acquired_just_now(&held);
    let busy = caller.call(&["acquire", "--key", KEY], 75);
    busy.stdout("").one_line(&[KEY, "is held by"]);
    let run = caller.dblock(&["run", "--key", KEY]).job("echo started");
    run.run().code(75).stdout("");

    // Renewed by its owner only.
    caller.by_hand("renew", KEY, &owner, 0);
    let renewed = caller.look(KEY);
    assert_eq!(renewed["renewals"], 1, "{renewed}");
    assert_lasts(&renewed, 60);
    for command in ["renew", "release"] {
        caller.by_hand(command, KEY, THIEF, 77);
    }

    // All keys are shown, not only one.
    let other = caller.acquire("another", "60s");
    let all = caller.call(&["status", "--json"], 0).json();
    assert_eq!(all.as_array().map(Vec::len), Some(2), "{all}");
    caller.by_hand("release", "another", &other, 0);

    // Released once.
    caller.by_hand("release", KEY, &owner, 0);
    caller.by_hand("release", KEY, &owner, 77);
    caller.call(&["status", KEY], 77);
    place.assert_free(KEY);

    expiry_and_takeover(caller, &held["token"]);
    renewals_under_a_job(caller);
    a_job_whose_lease_is_lost(caller);
    a_waiter(caller);
    place.assert_free(KEY);
}

fn expiry_and_takeover(caller: &Caller<'_>, earlier: &Value) {
    let first = caller.acquire(KEY, "3s");
    let seen = caller.look(KEY);
    wait::until("the lease to expire", || {
        let row = caller.look(KEY);
        if row["state"] == "expired" {
            Ok(())
        } else {
            Err(row.to_string())
        }
    });
    caller.by_hand("renew", KEY, &first, 77);
    let second = caller.acquire(KEY, "60s");
    let taken = caller.look(KEY);
    assert_eq!(taken["owner"], second.as_str());
    let token = |value: &Value| value.as_u64().expect("a token");
    let tokens = [earlier, &seen["token"], &taken["token"]].map(token);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    for command in ["renew", "release"] {
        caller.by_hand(command, KEY, &first, 77);
    }
    assert_eq!(caller.look(KEY)["owner"], second.as_str());
    caller.by_hand("release", KEY, &second, 0);
}

/// A lease that is shorter than its job lasts because it is renewed.
fn renewals_under_a_job(caller: &Caller<'_>) {
    let place = caller.place;
    let gate = place.gate();
    let job = format!("echo $DBLOCK_OWNER; {}; exit 5", gate.wait());
    let mut running = caller
        .dblock(&["run", "--key", KEY, "--ttl", "3s"])
        .job(&job)
        .start();
    let owner = running.lines(1).remove(0);
    let before = place.row(KEY);
    assert_eq!(before.owner, owner);
    let after = place.wait_for_renewal(KEY);
    assert!(after.expire_at > before.expire_at, "{before:?} {after:?}");
    assert!(place.left_ms(KEY) > 1000, "{after:?}");
    caller.call(&["acquire", "--key", KEY], 75);
    gate.open();
    running.wait().code(5).quiet();
    place.assert_free(KEY);
}

fn a_job_whose_lease_is_lost(caller: &Caller<'_>) {
    let place = caller.place;
    let mut running = caller
        .dblock(&["run", "--key", KEY, "--ttl", "3s"])
        .job("echo; exec sleep 30")
        .start();
    running.lines(1);
    let successor = place.steal(KEY);
    running.wait().code(76).one_line(&[KEY, "lost"]);
    assert_eq!(place.row(KEY), successor);
    place.delete(KEY);
}

fn a_waiter(caller: &Caller<'_>) {
    let first = caller.acquire(KEY, "60s");
    let waiting = waiting(caller, KEY);
    caller.by_hand("release", KEY, &first, 0);
    waiting.wait().code(0).stdout("started\n");
}

/// Checks that a lease of so many seconds has most of them left.
#[track_caller]
fn assert_lasts(row: &Value, seconds: u64) {
    let left = row["remaining_ms"].as_u64().expect("a number");
    let whole = seconds * 1000;
    let passed = u64::try_from(wait::LIMIT.as_millis()).expect("a few seconds");
    assert!((whole - passed..=whole).contains(&left), "{row}");
    assert_eq!(row["ttl_ms"], whole, "{row}");
}

/// Checks that the time of the grant is now, in UTC.
#[track_caller]
fn assert_acquired_just_now(row: &Value) {
    let held = row["held_ms"].as_u64().expect("a number");
    assert!(u128::from(held) <= wait::LIMIT.as_millis(), "{row}");
    let then = row["acquired_at"].as_str().expect("a text");
    let then: jiff::Timestamp = then.parse().expect("RFC 3339");
    let ago = jiff::Timestamp::now().duration_since(then);
    assert!(ago.unsigned_abs() <= wait::LIMIT, "{row}");
}

/// Does something with each of several things, all at the same time, and says
/// with which ones it has failed.
fn each<T: Copy + Send>(things: &[(&'static str, T)], test: fn(T)) {
    let failed: Vec<_> = thread::scope(|scope| {
        let start = |&(name, thing)| {
            let one = thread::Builder::new().name(String::from(name));
            let one = one.spawn_scoped(scope, move || test(thing));
            (name, one.expect("a thread"))
        };
        let runs: Vec<_> = things.iter().map(start).collect();
        let failed = |(name, run): (_, thread::ScopedJoinHandle<'_, ()>)| {
            run.join().is_err().then_some(name)
        };
        runs.into_iter().filter_map(failed).collect()
    });
    assert!(failed.is_empty(), "it goes wrong with {failed:#?}");
}

/// What an administrator may have put into `init_connect` or made a default.
const SETTINGS: &[&str] = &[
    "SET autocommit=0",
    "SET sql_mode=''",
    "SET sql_mode='ANSI'",
    "SET sql_mode='ANSI_QUOTES'",
    "SET sql_mode='EMPTY_STRING_IS_NULL'",
    "SET sql_mode='MSSQL'",
    "SET sql_mode='NO_BACKSLASH_ESCAPES'",
    "SET sql_mode='NO_UNSIGNED_SUBTRACTION,TIME_ROUND_FRACTIONAL'",
    "SET sql_mode='NO_ZERO_DATE,NO_ZERO_IN_DATE,STRICT_ALL_TABLES'",
    "SET sql_mode='ORACLE'",
    "SET sql_mode='PAD_CHAR_TO_FULL_LENGTH'",
    "SET sql_mode='SIMULTANEOUS_ASSIGNMENT'",
    "SET sql_mode='TRADITIONAL'",
    "SET time_zone='+13:00'",
    "SET time_zone='-12:30'",
    "SET timestamp=1000000000",
    "SET timestamp=2000000000",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET NAMES latin1",
    "SET NAMES binary",
    "SET NAMES utf8mb3 COLLATE utf8mb3_general_ci",
    "SET collation_connection=utf8mb4_turkish_ci",
    "SET character_set_results=NULL",
    "SET sql_select_limit=1",
    "SET sql_safe_updates=1",
    "SET max_join_size=1",
    "SET max_statement_time=5",
    "SET wait_timeout=2",
    "SET lc_messages='de_DE', lc_time_names='ja_JP'",
    "SET sql_auto_is_null=1",
    "SET auto_increment_increment=100, auto_increment_offset=50",
    "SET foreign_key_checks=0, unique_checks=0",
];

#[test]
fn e5_no_setting_of_a_session_changes_anything() {
    let settings: Vec<_> = SETTINGS.iter().map(|&sql| (sql, sql)).collect();
    each(&settings, under);
}

fn under(sql: &'static str) {
    let place = Place::mariadb();
    let port = place.database().server().port();
    let proxy = Middleman::start(Behind::Prepared(port, sql));
    the_life_of_a_lease(&Caller::through(&place, &proxy));
}

/// Returns a backend with a place's database, for a proxy that logs in by
/// itself.
fn backend(place: &Place<'_>, prepared: Option<&'static str>) -> Backend {
    let database = place.database();
    let account = format!("{}_open", database.user());
    let rights = format!("SELECT, INSERT, UPDATE, DELETE ON {}.*", database.name());
    let server = database.server();
    server.execute(&format!("CREATE USER {account}@'%'"));
    server.execute(&format!("GRANT {rights} TO {account}@'%'"));
    Backend {
        port: server.port(),
        account,
        database: database.name().to_owned(),
        prepared,
    }
}

fn in_a_pool(prepared: Option<&'static str>) {
    let place = Place::mariadb();
    let proxy = Middleman::start(Behind::Pool(backend(&place, prepared)));
    the_life_of_a_lease(&Caller::through(&place, &proxy));
}

#[test]
fn e5_each_packet_may_go_over_a_connection_of_its_own() {
    in_a_pool(None);
}

/// What is preset then is not undone by what the first packet has set.
#[test]
fn e5_each_packet_may_go_over_a_connection_with_settings_of_its_own() {
    let settings = [
        "SET autocommit=0",
        "SET timestamp=1000000000",
        "SET timestamp=2000000000",
        "SET NAMES latin1",
        "SET sql_safe_updates=1",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ];
    each(&settings.map(|sql| (sql, Some(sql))), in_a_pool);
}

/// A renewal counts only if the server keeps it, under its own clock: as long
/// as a job runs, nobody else gets its key.
#[test]
fn e5_a_key_stays_taken_whatever_the_next_connection_presets() {
    let settings = [
        "SET autocommit=0",
        "SET timestamp=1000000000",
        "SET timestamp=2000000000",
    ];
    each(&settings.map(|sql| (sql, sql)), a_rival_waits_in_vain);
}

fn a_rival_waits_in_vain(prepared: &'static str) {
    let place = Place::mariadb();
    let proxy = Middleman::start(Behind::Pool(backend(&place, Some(prepared))));
    let caller = Caller::through(&place, &proxy);
    let gate = place.gate();
    let mut holder = caller
        .dblock(&["run", "--key", KEY, "--ttl", "2s"])
        .job(&format!("echo; {}; exit 5", gate.wait()))
        .start();
    holder.lines(1);
    // Twice as long as the lease lasts without a renewal.
    let rival = ["run", "--key", KEY, "--wait", "4s"];
    let rival = Caller::direct(&place).dblock(&rival).job("echo started");
    rival.run().code(75).stdout("");
    holder.assert_running();
    gate.open();
    holder.wait().code(5).quiet();
    place.assert_free(KEY);
}

#[test]
fn e5_a_proxy_may_have_rows_counted_that_are_not_changed() {
    let place = Place::mariadb();
    let port = place.database().server().port();
    let proxy = Middleman::start(Behind::FoundRows(port));
    the_life_of_a_lease(&Caller::through(&place, &proxy));
}

/// A splitter between a server and a copy of it that lags behind.
struct Split<'a> {
    copy: Place<'static>,
    proxy: Middleman,
    place: &'a Place<'static>,
}

impl<'a> Split<'a> {
    /// Starts one whose copy has no rows (yet).
    fn of(place: &'a Place<'static>) -> Self {
        let copy = Place::mariadb();
        let writer = backend(place, None);
        let reader = backend(&copy, None);
        let proxy = Middleman::start(Behind::Splitter { writer, reader });
        Self { copy, proxy, place }
    }

    fn caller(&self) -> Caller<'_> {
        Caller::through(self.place, &self.proxy)
    }
}

#[test]
fn f8_a_copy_that_knows_nothing_does_no_harm() {
    let place = Place::mariadb();
    the_life_of_a_lease(&Split::of(&place).caller());
}

#[test]
fn f8_a_copy_that_shows_the_past_does_no_harm() {
    let place = Place::mariadb();
    let split = Split::of(&place);
    let caller = split.caller();
    // Held by somebody who has released it where it counts.
    Caller::direct(&split.copy).acquire("k", "600s");
    let run = caller.dblock(&["run", "--key", "k"]).job("exit 5");
    run.run().code(5).quiet();

    let owner = caller.acquire("k", "60s");
    let waiting = waiting(&caller, "k");
    caller.by_hand("renew", "k", &owner, 0);
    caller.by_hand("release", "k", &owner, 0);
    // The copy catches up.
    split.copy.delete("k");
    waiting.wait().code(0).stdout("started\n");
    place.assert_free("k");
}

/// Starts a run that waits for a key.
#[track_caller]
fn waiting(caller: &Caller<'_>, key: &str) -> Running {
    let waiting = caller
        .dblock(&["run", "--key", key, "--wait", "15s", "--verbose"])
        .job("echo started")
        .start();
    wait::until("a run to wait", || {
        let facts = waiting.facts();
        if facts.contains("; waiting") {
            Ok(())
        } else {
            Err(facts)
        }
    });
    waiting
}

// Time zones.

/// Makes a time zone whose clocks have been two hours ahead of UTC until
/// `after` seconds from now and one hour ahead since, or the other way round.
fn time_zone(server: &Server, name: &str, after: i64, hours: [i64; 2]) {
    let mut connection = server.connect().expect("the administrator can connect");
    let mut execute = |sql: &str| {
        query_on(&mut connection, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    };
    execute("INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')");
    execute("SET @zone = LAST_INSERT_ID()");
    execute(&format!(
        "INSERT INTO mysql.time_zone_name VALUES ('{name}', @zone)"
    ));
    for (number, hours) in hours.iter().enumerate() {
        execute(&format!(
            "INSERT INTO mysql.time_zone_transition_type \
             VALUES (@zone, {number}, {hours} * 3600, {hours} - 1, 'X{number}')"
        ));
    }
    execute("INSERT INTO mysql.time_zone_transition VALUES (@zone, 0, 0)");
    execute(&format!(
        "INSERT INTO mysql.time_zone_transition VALUES (@zone, UNIX_TIMESTAMP() + {after}, 1)"
    ));
}

/// The hour that there is twice: the local time of now is also that of one
/// hour ago.
#[test]
fn d4_the_hour_that_there_is_twice() {
    let server = Server::shared();
    time_zone(server, "Dblock/Twice", -600, [2, 1]);
    let mut connection = server.connect().expect("the administrator can connect");
    let sql = "SET STATEMENT time_zone='Dblock/Twice' FOR \
               SELECT ROUND(UNIX_TIMESTAMP() - UNIX_TIMESTAMP(NOW()))";
    let wrong = query_on(&mut connection, sql).expect("an answer");
    assert_eq!(wrong, [["3600"]], "the server takes it for the first one");
    under("SET time_zone='Dblock/Twice'");
}

#[test]
fn d4_clocks_that_are_changed_while_a_lease_runs() {
    let server = Server::shared();
    time_zone(server, "Dblock/Back", 2, [2, 1]);
    time_zone(server, "Dblock/Forth", 2, [1, 2]);
    let zones = [
        "SET time_zone='Dblock/Back'",
        "SET time_zone='Dblock/Forth'",
    ];
    each(&zones.map(|sql| (sql, sql)), under);
}

// Servers with flags.

fn on_a_server_with(flags: &[&str]) {
    let server = Server::start_with(flags);
    let place = Place::on(&server);
    the_life_of_a_lease(&Caller::direct(&place));
}

#[test]
fn e5_binary_logs_of_statements() {
    on_a_server_with(&["--log-bin=log", "--binlog-format=STATEMENT"]);
}

/// Binary logs as MariaDB's own defaults have them, and a server whose clock
/// no session may set.
#[test]
fn e5_binary_logs_of_both_kinds_and_a_clock_of_its_own() {
    on_a_server_with(&[
        "--log-bin=log",
        "--binlog-format=MIXED",
        "--secure-timestamp=YES",
    ]);
}

/// All defaults that matter, changed for real and all at once.
#[test]
fn e5_g5_f6_a_server_of_strange_habits() {
    let server = Server::start_with(&[
        "--sql-mode=",
        "--transaction-isolation=SERIALIZABLE",
        "--character-set-server=latin1",
        "--default-time-zone=+05:45",
        "--wait-timeout=2",
        "--interactive-timeout=2",
        "--init-connect=SET timestamp=1500000000, sql_mode='', autocommit=0; SET NAMES latin1",
    ]);
    let place = Place::on(&server);
    let caller = Caller::direct(&place);
    the_life_of_a_lease(&caller);
    keys_that_are_too_long(&place);
    keys_that_are_just_short_enough(&caller);
    // Longer than a connection may be idle here, and without a renewal.
    let run = caller.dblock(&["run", "--key", KEY, "--ttl", "60s"]);
    run.job("sleep 3; exit 5").run().code(5).quiet();
    place.assert_free(KEY);
}

/// A key is never cut: the limit is known before there is a connection.
fn keys_that_are_too_long(place: &Place<'_>) {
    let proxy = Middleman::start(Behind::Nobody);
    let caller = Caller::through(place, &proxy);
    for key in ["x".repeat(300), "x".repeat(256), "ä".repeat(128)] {
        for command in ["run", "acquire"] {
            let call = caller.dblock(&[command, "--key", &key]);
            let call = if command == "run" {
                call.job("echo started")
            } else {
                call
            };
            call.run().code(64).stdout("").says(&["255"]);
        }
    }
    assert_eq!(proxy.connections(), 0);
}

/// Two keys that differ in their last byte only are two locks.
fn keys_that_are_just_short_enough(caller: &Caller<'_>) {
    for start in ["x".repeat(254), "ä".repeat(127), "日".repeat(84) + "ab"] {
        let keys = ["1", "2"].map(|end| format!("{start}{end}"));
        let owners = [&keys[0], &keys[1]].map(|key| caller.acquire(key, "60s"));
        for (key, owner) in keys.iter().zip(&owners) {
            assert_eq!(caller.look(key)["owner"], owner.as_str());
            caller.call(&["acquire", "--key", key], 75);
            caller.by_hand("release", key, owner, 0);
        }
    }
}
