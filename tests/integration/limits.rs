//! A server at its limits: too many clients, blocked tables, connections that
//! end while they are idle, and rows that somebody else has written.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mysql::Conn;

use crate::support::dblock::{Dblock, Output};
use crate::support::outcome::status;
use crate::support::place::{Gate, Place};
use crate::support::proxy::Proxy;
use crate::support::running::Running;
use crate::support::server::{Server, query_on};
use crate::support::{PASSWORD_VARIABLE, wait};

/// What a busy machine may add to a documented time.
fn generous(limit: Duration) -> Duration {
    limit * 2 + Duration::from_secs(2)
}

// Everybody at once.

/// Runs that are started at once.
const STARTERS: usize = 100;

/// Runs that were started at once, half of them under one key. Their jobs keep
/// their connections until the gate is opened.
struct Crowd<'place> {
    place: &'place Place<'place>,
    files: PathBuf,
    gate: Gate,
    calls: Vec<Running>,
}

impl<'place> Crowd<'place> {
    #[track_caller]
    fn start(place: &'place Place<'_>, count: usize, patience: &[&str]) -> Self {
        let files = place.file("witness");
        fs::create_dir(&files).expect("a directory for the witnesses");
        let gate = place.gate();
        let job = format!(
            "cd '{}' || exit 1; mkdir $DBLOCK_KEY || echo $DBLOCK_KEY >> overlaps; {}; \
             echo $DBLOCK_KEY $DBLOCK_TOKEN >> ran; rmdir $DBLOCK_KEY",
            files.display(),
            gate.wait()
        );
        let calls = (0..count).map(|number| {
            let own = format!("key-{number}");
            let key = if number % 2 == 0 { "shared" } else { &own };
            place.run(key).args(patience).job(&job).start()
        });
        let calls = calls.collect();
        Self {
            place,
            files,
            gate,
            calls,
        }
    }

    /// Waits until this many are left.
    #[track_caller]
    fn wait_until_left(&self, most: usize) {
        wait::until("all others to end", || {
            let alive = |call: &&Running| call.process().is_alive();
            match self.calls.iter().filter(alive).count() {
                left if left <= most => Ok(()),
                left => Err(format!("{left} are left")),
            }
        });
    }

    /// Opens the gate, checks that each job ran whose dblock says so, alone
    /// and once, and returns the outputs.
    #[track_caller]
    fn finish(self) -> Vec<Output> {
        self.gate.open();
        let outputs: Vec<_> = self.calls.into_iter().map(Running::wait).collect();
        let read = |name: &str| fs::read_to_string(self.files.join(name)).unwrap_or_default();
        assert_eq!(read("overlaps"), "", "jobs overlapped");
        let ran = read("ran");
        let mut lines: Vec<_> = ran.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        let good = outputs.iter().filter(|output| status(output) == 0).count();
        assert_eq!((lines.len(), ran.lines().count()), (good, good), "{ran}");
        let rows = self.place.query("SELECT lock_key FROM dblock_lock");
        assert!(rows.is_empty(), "{rows:?}");
        outputs
    }
}

/// Waits until a counter of the server's has got this far.
#[track_caller]
fn wait_for_status(server: &Server, name: &str, least: u64) {
    wait::until(name, || {
        let rows = server.try_query(&format!("SHOW GLOBAL STATUS LIKE '{name}'"));
        let rows = rows.map_err(|error| error.to_string())?;
        let value: u64 = rows[0][1].parse().expect("a number");
        if value >= least {
            return Ok(());
        }
        Err(format!("{value}"))
    });
}

#[test]
fn i2_who_waits_gets_a_connection_and_the_lock() {
    let server = Server::start_with(&["--max-connections=20"]);
    let place = Place::on(&server);
    let crowd = Crowd::start(&place, STARTERS, &["--wait", "60s"]);
    // More than once for each of those who found no room.
    wait_for_status(&server, "Connection_errors_max_connections", 200);
    for output in crowd.finish() {
        output.code(0).quiet();
    }
}

#[test]
fn i2_who_does_not_wait_is_told_what_is_short() {
    let server = Server::start_with(&["--max-connections=20"]);
    let place = Place::on(&server);
    let crowd = Crowd::start(&place, STARTERS, &["--no-wait"]);
    crowd.wait_until_left(20);
    let mut refused = 0;
    for output in crowd.finish() {
        match status(&output) {
            0 => output.quiet(),
            75 => output.one_line(&["\"shared\" is held by "]),
            69 => {
                refused += 1;
                output.one_line(&["Too many connections"])
            }
            other => panic!("status {other}: {}", output.stderr),
        };
    }
    assert!(refused > 0, "there were connections for all");
}

#[test]
fn i2_an_account_with_few_connections_waits_for_one() {
    let place = Place::mariadb();
    let (server, user) = (place.database().server(), place.database().user());
    server.execute(&format!(
        "ALTER USER {user}@'%' WITH MAX_USER_CONNECTIONS 3"
    ));
    let crowd = Crowd::start(&place, 20, &["--wait", "60s"]);
    // A holder or a waiter has each.
    let used = format!("SELECT id FROM information_schema.processlist WHERE user = '{user}'");
    wait::until("all connections to be in use", || {
        match place.query(&used).len() {
            3 => Ok(()),
            other => Err(format!("{other} are")),
        }
    });
    for output in crowd.finish() {
        output.code(0).quiet();
    }
}

/// A server blocks a host whose connections are cut too often, so there must
/// not be many.
#[test]
fn i2_connections_that_are_cut_are_no_reason_to_hurry() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    proxy.refuse();
    let url = place.database().url_at(proxy.port());
    for (patience, most) in [(&["--no-wait"][..], 1), (&["--wait", "60s"], 30)] {
        let before = proxy.connections();
        let run = place.run("k").env("DBLOCK_URL", &url).args(patience);
        let run = run.args(["--", "true"]).run();
        run.code(69)
            .one_line(&[&format!("127.0.0.1:{}", proxy.port())])
            .took_at_most(generous(Duration::from_secs(5)));
        let made = proxy.connections() - before;
        assert!((1..=most).contains(&made), "{made} connections");
    }
    place.assert_free("k");
}

/// Answers each connection with an error in place of a greeting, and counts.
///
/// A real server blocks a host only by a name lookup that not every machine
/// has; what it sends is the same.
fn server_that_greets_with(code: u16, text: &'static str) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it has an address").port();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let greet = move || {
        for mut client in listener.incoming().flatten() {
            counter.fetch_add(1, Ordering::SeqCst);
            let mut packet = vec![0xff];
            packet.extend(code.to_le_bytes());
            packet.extend(text.as_bytes());
            let length = u8::try_from(packet.len()).expect("a short text");
            client.write_all(&[length, 0, 0, 0]).ok();
            client.write_all(&packet).ok();
        }
    };
    // It ends with the tests, as it has nothing to give back.
    thread::spawn(greet);
    (port, count)
}

#[test]
fn i2_a_host_that_is_blocked_is_told_so_and_asks_once() {
    let place = Place::mariadb();
    let marker = place.file("started");
    let (port, count) = server_that_greets_with(
        1129,
        "Host '192.0.2.7' is blocked because of many connection errors; unblock with \
         'mariadb-admin flush-hosts'",
    );
    let url = place.database().url_at(port);
    for (number, patience) in [&["--no-wait"][..], &["--wait", "60s"]].iter().enumerate() {
        let run = place.run("k").env("DBLOCK_URL", &url).args(*patience);
        let run = run.args(["--", "touch"]).arg(&marker).run();
        run.code(78)
            .one_line(&["is blocked", "flush-hosts", "1129"])
            .took_at_most(generous(Duration::from_secs(5)));
        assert_eq!(count.load(Ordering::SeqCst), number + 1);
    }
    assert!(!marker.exists(), "the job was started");
}

#[test]
fn i2_a_wrong_password_is_tried_once() {
    const CALLS: usize = 20;
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let url = place.database().url_at(proxy.port());
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let patience = if number % 2 == 0 {
                "--no-wait"
            } else {
                "--wait"
            };
            let run = place.run("k").env("DBLOCK_URL", &url);
            let run = run.env(PASSWORD_VARIABLE, "another").arg(patience);
            run.args(["--", "true"]).start()
        })
        .collect();
    for call in calls {
        call.wait()
            .code(78)
            .stdout("")
            .one_line(&["Access denied", place.database().user()]);
    }
    assert_eq!(proxy.connections(), CALLS);
    place.run("k").args(["--", "true"]).run().code(0).quiet();
}

// Somebody blocks the table.

/// What somebody else does to the table of locks, until it is dropped.
struct Blocker {
    session: Option<Conn>,
    waiting: Option<JoinHandle<()>>,
}

impl Drop for Blocker {
    fn drop(&mut self) {
        drop(self.session.take());
        if let Some(waiting) = self.waiting.take() {
            waiting.join().ok();
        }
    }
}

#[track_caller]
fn block(place: &Place<'_>, statements: &[&str]) -> Blocker {
    let mut session = place.database().connect();
    for sql in statements {
        query_on(&mut session, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    Blocker {
        session: Some(session),
        waiting: None,
    }
}

/// A transaction that has changed the row of `k` and was forgotten. It names
/// the whole primary key: with a part of it, InnoDB would lock the gaps beside
/// the row as well.
fn forgotten_transaction(place: &Place<'_>) -> Blocker {
    let change = "UPDATE dblock_lock SET note = 'open' WHERE lock_key = 'k' AND slot = 0";
    block(place, &["BEGIN", change])
}

/// A backup, say.
fn locked_tables(place: &Place<'_>) -> Blocker {
    block(place, &["LOCK TABLES dblock_lock WRITE"])
}

/// A change of the table that waits for a transaction, before everybody else.
fn waiting_change(place: &Place<'_>) -> Blocker {
    let mut blocker = block(place, &["BEGIN", "SELECT * FROM dblock_lock"]);
    let mut other = place.database().connect();
    let number = other.connection_id();
    blocker.waiting = Some(thread::spawn(move || {
        query_on(
            &mut other,
            "ALTER TABLE dblock_lock ADD COLUMN more INT NULL",
        )
        .ok();
    }));
    wait::until("the change to wait", || {
        let state = format!("SELECT state FROM information_schema.processlist WHERE id = {number}");
        let state = place.query(&state);
        match state.first().map(|row| row[0].as_str()) {
            Some("Waiting for table metadata lock") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    blocker
}

/// The limit that all commands are given here.
const CONTACT: Duration = Duration::from_secs(2);

/// Who may go on while somebody else blocks.
enum Effect {
    /// All but those who want to change the row of `k`.
    OneRow,
    /// Nobody.
    WholeTable,
}

/// Checks what all commands say and that each ends in its time, and that none
/// of them has done anything afterwards.
fn all_commands_under(blocker: fn(&Place<'_>) -> Blocker, effect: &Effect) {
    let place = &Place::mariadb();
    let acquire = place
        .dblock()
        .args(["acquire", "--key", "k", "--ttl", "600s"]);
    let owner = &acquire.run().code(0).quiet().text().trim_end().to_owned();
    let before = place.row("k");
    let blocking = blocker(place);
    let by_hand = |command: &str| {
        let call = place.dblock().args([command, "--key", "k"]);
        call.args(["--owner", owner])
    };
    let waiting = ["--wait", "3s"];
    let reads = matches!(effect, Effect::OneRow);
    // Each with the time that it is given, and whether it goes on.
    let calls: [(Dblock, Duration, bool); 10] = [
        (place.run("k"), CONTACT, false),
        (place.run("k").args(waiting), Duration::from_secs(3), false),
        (place.run("other"), CONTACT, reads),
        (place.dblock().args(["acquire", "--key=k"]), CONTACT, false),
        // One call to find the row, and one to change it.
        (by_hand("renew"), CONTACT * 2, false),
        (by_hand("release"), CONTACT * 2, false),
        (
            place.dblock().args(["force-release", "k", "--yes"]),
            CONTACT * 2,
            false,
        ),
        (by_hand("check"), CONTACT, reads),
        (place.dblock().args(["status", "k"]), CONTACT, reads),
        (place.dblock().arg("status"), CONTACT, reads),
    ];
    thread::scope(|scope| {
        for (number, (call, limit, goes_on)) in calls.into_iter().enumerate() {
            scope.spawn(move || {
                let call = call.args(["--connect-timeout", "2s"]);
                let call = if number < 3 {
                    call.args(["--", "true"])
                } else {
                    call
                };
                let output = call.run().took_at_most(generous(limit));
                if goes_on {
                    output.code(0).quiet();
                } else {
                    output.code(69).stdout("").one_line(&["Lock wait timeout"]);
                }
            });
        }
    });
    drop(blocking);
    // Those who have ended may have left something behind on the server.
    let user = place.database().user();
    let left =
        format!("SELECT id, state, info FROM information_schema.processlist WHERE user = '{user}'");
    wait::until("the server to have done with them", || {
        match place.query(&left) {
            rows if rows.is_empty() => Ok(()),
            rows => Err(format!("{rows:?}")),
        }
    });
    assert_eq!(place.row("k"), before);
    assert_eq!(place.query("SELECT lock_key FROM dblock_lock"), [["k"]]);
    by_hand("release").run().code(0).quiet();
    place.run("k").args(["--", "true"]).run().code(0).quiet();
}

#[test]
fn e3_a_forgotten_transaction_stops_nobody_but_who_wants_its_row() {
    all_commands_under(forgotten_transaction, &Effect::OneRow);
}

#[test]
fn e3_under_locked_tables_each_command_ends_in_time() {
    all_commands_under(locked_tables, &Effect::WholeTable);
}

#[test]
fn e3_behind_a_change_that_waits_each_command_ends_in_time() {
    all_commands_under(waiting_change, &Effect::WholeTable);
}

#[test]
fn e3_a_run_survives_a_while_in_which_its_table_is_locked() {
    let place = Place::mariadb();
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = place.run("k").args(["--ttl", "18s"]).job(&job).start();
    running.job();
    let blocking = locked_tables(&place);
    wait::until("two renewals in vain", || {
        let facts = running.facts();
        if facts.contains("still trying") {
            return Ok(());
        }
        running.assert_running();
        Err(facts)
    });
    drop(blocking);
    wait::until("a renewal", || match place.row("k") {
        row if row.renewals > 0 => Ok(()),
        row => Err(format!("{row:?}; {}", running.facts())),
    });
    gate.open();
    let output = running
        .wait()
        .code(5)
        .says(&["Lock wait timeout", "works again"]);
    assert_eq!(output.stderr.lines().count(), 2, "{}", output.stderr);
    place.assert_free("k");
}

// Connections that end while they are idle.

#[test]
fn f6_a_server_that_ends_idle_connections_soon_costs_nothing() {
    let server = Server::start_with(&["--wait-timeout=2", "--interactive-timeout=2"]);
    let place = Place::on(&server);
    let proxy = Proxy::start(server.port());
    let url = place.database().url_at(proxy.port());
    let run = place.run("k").env("DBLOCK_URL", url);
    let run = run.args(["--ttl", "30s"]).job("sleep 7; exit 5").run();
    run.code(5).quiet();
    assert_eq!(proxy.connections(), 1);
    place.assert_free("k");
}

/// Kills the connection of a user's, and returns how many there were.
fn kill_connections(place: &Place<'_>) -> usize {
    let user = place.database().user();
    let list = format!(
        "SELECT id FROM information_schema.processlist WHERE user = '{user}' AND command = 'Sleep'"
    );
    let idle = place.query(&list);
    for row in &idle {
        // It may have ended by itself.
        place
            .database()
            .server()
            .try_query(&format!("KILL {}", row[0]))
            .ok();
    }
    idle.len()
}

#[test]
fn f6_killed_connections_are_no_incident() {
    let place = Place::mariadb();
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let mut running = place.run("k").args(["--ttl", "6s"]).job(&job).start();
    running.job();
    let (mut killed, mut last) = (0, Instant::now());
    wait::until("renewals in spite of all", || {
        // A connection lives for a second at most.
        if last.elapsed() > Duration::from_secs(1) {
            last = Instant::now();
            killed += kill_connections(&place);
        }
        let row = place.row("k");
        if row.renewals >= 3 && killed >= 3 {
            return Ok(());
        }
        Err(format!("{killed} killed, {row:?}; {}", running.facts()))
    });
    // One more, so that the release has to connect first.
    wait::until("the last one", || match kill_connections(&place) {
        0 => Err(running.facts()),
        _ => Ok(()),
    });
    gate.open();
    running.wait().code(5).quiet();
    place.assert_free("k");
}

#[test]
fn f6_a_connection_that_was_cut_while_idle_is_made_anew_for_the_release() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let gate = place.gate();
    let url = place.database().url_at(proxy.port());
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let run = place.run("k").env("DBLOCK_URL", url);
    let mut running = run.args(["--ttl", "30s"]).job(&job).start();
    running.job();
    proxy.cut();
    gate.open();
    running.wait().code(5).quiet();
    assert_eq!(proxy.connections(), 2);
    place.assert_free("k");
}

// Rows that somebody else has written.

/// Inserts a row as a server takes it that is not strict.
fn insert(place: &Place<'_>, key: &str, expire_at: &str, owner: &str) {
    place.query(&format!(
        "SET STATEMENT sql_mode='' FOR INSERT INTO dblock_lock (lock_key, owner_id, token, \
         expire_at, acquired_at, ttl_ms, kind, host, pid, user_name, command) VALUES \
         ({key}, {owner}, 5, {expire_at}, '2024-02-03 04:05:06.789', 30000, 'run', 'old-host', \
         1, 'somebody', 'a command')"
    ));
}

const IN_2099: &str = "4070908800000";

fn status_of(place: &Place<'_>, key: &str) -> (Output, Output) {
    let look = || place.dblock().args(["status", key]);
    (look().run(), look().arg("--json").run())
}

fn force(place: &Place<'_>, key: &str) -> Output {
    place.dblock().args(["force-release", key, "--yes"]).run()
}

#[test]
fn h6_rows_of_the_past_stand_in_nobodys_way() {
    let place = Place::mariadb();
    let months_ago = "1700000000000";
    for (number, end) in [months_ago, "0", "-1", "-9223372036854775808"]
        .into_iter()
        .enumerate()
    {
        let key = format!("past-{number}");
        let again = || insert(&place, &format!("'{key}'"), end, "UUID()");
        again();
        let (shown, json) = status_of(&place, &key);
        assert!(shown.code(77).quiet().text().contains("expired"), "{end}");
        let json = json.code(77).quiet().json();
        assert_eq!(json[0]["state"], "expired", "{end}");
        assert_eq!(json[0]["remaining_ms"], 0, "{end}");
        let run = place.run(&key).args(["--", "true"]).run();
        run.code(0).quiet().took_at_most(generous(CONTACT));
        place.assert_free(&key);
        again();
        let forced = force(&place, &key).code(0);
        assert!(forced.text().contains("old-host"), "{}", forced.text());
        place.assert_free(&key);
    }
}

#[test]
fn h6_rows_of_the_far_future_are_busy_and_can_be_removed() {
    let place = Place::mariadb();
    for (key, end, owner) in [
        ("late", IN_2099, "UUID()"),
        ("last", "9223372036854775807", "UUID()"),
        ("no-uuid", IN_2099, "'me'"),
        ("no-owner", IN_2099, "''"),
        ("injected", IN_2099, "'x'' OR ''1''=''1'"),
    ] {
        insert(&place, &format!("'{key}'"), end, owner);
        let (shown, json) = status_of(&place, key);
        assert!(shown.code(0).quiet().text().contains("held"), "{key}");
        let json = json.code(0).quiet().json();
        assert_eq!(json[0]["state"], "held", "{key}");
        assert_eq!(json[0]["acquired_at"], "2024-02-03T04:05:06.789Z", "{key}");
        let marker = place.file("started");
        let run = place.run(key).args(["--", "touch"]).arg(&marker).run();
        run.code(75).one_line(&[
            "is held by old-host",
            "since 2024-02-03 04:05:06 UTC",
            "left",
        ]);
        assert!(!marker.exists(), "the job was started");
        let forced = force(&place, key).code(0);
        assert!(forced.text().contains("old-host"), "{}", forced.text());
        place.assert_free(key);
        place.run(key).args(["--", "true"]).run().code(0).quiet();
    }
}

/// Keys that dblock refuses to make, so that nobody can ask for them. They are
/// shown without harm to a terminal, and harm no other key.
#[test]
fn h6_keys_that_are_none_are_shown_and_do_no_harm() {
    let place = Place::mariadb();
    let keys = [
        "x'610a1b5b324a62'", // a line end and what clears a terminal
        "'a '",
        "x'07'",
        "x'00'",
        "_utf8mb4 x'c285'",
    ];
    for key in keys {
        insert(&place, key, IN_2099, "UUID()");
    }
    let shown = place.dblock().arg("status").run().code(0).quiet();
    let text = shown.text();
    // A line for each, and the header.
    assert_eq!(text.lines().count(), keys.len() + 1, "{text}");
    let is_harmful = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(is_harmful), "{text:?}");
    let json = place.dblock().args(["status", "--json"]).run();
    let json = json.code(0).quiet().json();
    assert_eq!(json.as_array().map(Vec::len), Some(keys.len()), "{json}");
    place
        .run("other")
        .args(["--", "true"])
        .run()
        .code(0)
        .quiet();
    place.assert_free("other");
}
