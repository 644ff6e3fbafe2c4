//! Waiting for a key: in a queue of the server's where there is one, without
//! a statement of its own, in turn, and without a trace when it is over.
//!
//! `DBLOCK_TEST_SECONDS` makes the crowds as large, and the turns as long, as
//! `tests/soak` wants them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGINT, SIGKILL, SIGTERM};
use serde_json::Value;

use crate::support::dblock::Dblock;
use crate::support::on_every_store;
use crate::support::place::{Gate, Place};
use crate::support::proxy::Proxy;
use crate::support::running::Running;
use crate::support::server::Server;
use crate::support::wait;

on_every_store!(
    a_waiter_is_shown_while_it_waits,
    a_waiter_that_came_not_again_is_not_shown,
    a_wait_ends_in_time,
    a_signal_ends_a_wait_at_once,
    waiters_outlive_a_holder_that_is_killed,
    a_waiter_that_is_killed_stands_in_nobodys_way,
    five_slots_are_used_by_many,
    a_slot_that_is_given_back_is_taken_soon,
);

/// Starts a job that prints its process id and waits at the gate, and waits
/// until it runs.
#[track_caller]
fn hold(place: &Place<'_>, options: &[&str], gate: &Gate) -> Running {
    let job = format!("echo $$; {}", gate.wait());
    let mut running = place.run("k").args(options).job(&job).start();
    running.job();
    running
}

/// Returns dblock as it waits for ever.
fn waiting(place: &Place<'_>) -> Dblock {
    place.run("k").arg("--wait")
}

fn waiters(place: &Place<'_>) -> usize {
    let rows = place.query("SELECT pid FROM dblock_waiter WHERE lock_key = 'k'");
    rows.len()
}

/// Waits until so many are shown to wait for the key.
#[track_caller]
fn await_waiters(place: &Place<'_>, count: usize) {
    wait::within(LONG_LIMIT, "the waiters to be shown", || {
        match waiters(place) {
            now if now == count => Ok(()),
            now => Err(format!("{now} of {count}")),
        }
    });
}

/// The limit for crowds on a busy machine.
const LONG_LIMIT: Duration = Duration::from_secs(120);

/// Connections to the place's database that sleep in a queue of the server's.
fn sleepers(place: &Place<'_>) -> usize {
    let queued = "SELECT id FROM information_schema.processlist \
                  WHERE db = DATABASE() AND state = 'User lock'";
    place.database().query(queued).len()
}

/// Waits until so many sleep in the server's queue.
#[track_caller]
fn await_sleepers(place: &Place<'_>, count: usize) {
    wait::until("the waiters to sleep", || match sleepers(place) {
        now if now == count => Ok(()),
        now => Err(format!("{now} of {count}")),
    });
}

/// Returns what is left of calls on the server: connections of the place's
/// user, locks of the queue's, and waiters.
fn traces(place: &Place<'_>) -> [String; 3] {
    let database = place.database();
    let user = database.user();
    let one = |sql: &str| database.query(sql)[0][0].clone();
    [
        one(&format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{user}'"
        )),
        one("SELECT IS_USED_LOCK(CONCAT('dblock:', \
             LEFT(SHA2(CONCAT(DATABASE(), 0x00, _utf8mb4 'k'), 256), 32)))"),
        one("SELECT COUNT(*) FROM dblock_waiter"),
    ]
}

/// Waits until nothing is left of any call.
#[track_caller]
fn await_no_traces(place: &Place<'_>) {
    wait::until("nothing to be left", || match traces(place) {
        left if left == ["0", "NULL", "0"] => Ok(()),
        left => Err(format!("connections, queue, waiters: {left:?}")),
    });
}

fn status(place: &Place<'_>) -> Value {
    let output = place.dblock().args(["status", "--json", "k"]).run();
    output.code(0).quiet().json()
}

fn a_waiter_is_shown_while_it_waits(place: &Place) {
    let gate = place.gate();
    let holder = hold(place, &[], &gate);
    assert_eq!(status(place)[0]["waiters"], Value::Array(Vec::new()));
    let first = waiting(place).job("true").start();
    await_waiters(place, 1);
    let second = waiting(place).arg("--verbose").job("true").start();
    await_waiters(place, 2);
    let row = &status(place)[0];
    let shown = row["waiters"].as_array().expect("an array");
    for (waiter, running) in shown.iter().zip([&first, &second]) {
        assert_eq!(waiter["pid"], running.pid(), "{row}");
        assert_eq!(
            (&waiter["host"], &waiter["user"]),
            (&row["host"], &row["user"])
        );
        let waited = waiter["waiting_ms"].as_u64().expect("a number");
        assert!(waited < 20_000, "{row}");
    }
    assert_eq!(shown.len(), 2, "{row}");
    let table = place.dblock().args(["status", "k"]).run().code(0);
    let text = table.text();
    assert!(
        text.lines()
            .next()
            .is_some_and(|line| line.contains("WAITING")),
        "{text}"
    );
    gate.open();
    holder.wait().code(0).quiet();
    first.wait().code(0).quiet();
    let told = second.wait().code(0);
    told.says(&["\"k\" is held by ", "; waiting", "granted"]);
    await_waiters(place, 0);
    place.assert_free("k");
}

/// A waiter that dies without a word is forgotten after a while.
fn a_waiter_that_came_not_again_is_not_shown(place: &Place) {
    let gate = place.gate();
    let holder = hold(place, &[], &gate);
    let waiter = waiting(place).job("true").start();
    await_waiters(place, 1);
    place.query("UPDATE dblock_waiter SET seen = seen - 91000");
    assert_eq!(status(place)[0]["waiters"], Value::Array(Vec::new()));
    gate.open();
    holder.wait().code(0).quiet();
    waiter.wait().code(0).quiet();
    await_waiters(place, 0);
}

fn a_wait_ends_in_time(place: &Place) {
    const LENGTH: Duration = Duration::from_secs(3);
    let gate = place.gate();
    let holder = hold(place, &[], &gate);
    let late = place.run("k").args(["--wait", "3"]).job("echo ran").run();
    let late = late.code(75).stdout("").one_line(&["\"k\" is held by "]);
    // On a machine at rest it is a few milliseconds late.
    late.took_at_least(LENGTH)
        .took_at_most(LENGTH + Duration::from_secs(3));
    await_waiters(place, 0);
    // No time at all is not waited for.
    let busy = place.run("k").args(["--wait", "0"]).job("echo ran").run();
    busy.code(75).stdout("").took_at_most(LENGTH);
    gate.open();
    holder.wait().code(0).quiet();
    place.assert_free("k");
}

fn a_signal_ends_a_wait_at_once(place: &Place) {
    let gate = place.gate();
    let holder = hold(place, &[], &gate);
    for signal in [SIGTERM, SIGINT] {
        let waiter = waiting(place).job("echo ran").start();
        await_waiters(place, 1);
        let begin = Instant::now();
        waiter.signal(signal);
        waiter.wait().signal(signal).stdout("").quiet();
        let took = begin.elapsed();
        // It takes some ten milliseconds; the sleep would take half a minute.
        assert!(took < Duration::from_secs(3), "{took:?}");
        await_waiters(place, 0);
    }
    assert_eq!(place.rows("k").len(), 1, "the holder is not touched");
    gate.open();
    holder.wait().code(0).quiet();
    place.assert_free("k");
}

#[test]
fn a_signal_in_the_servers_queue_leaves_nothing_there() {
    let place = Place::mariadb();
    let gate = place.gate();
    let holder = hold(&place, &[], &gate);
    for signal in [SIGTERM, SIGINT] {
        let waiter = waiting(&place).job("echo ran").start();
        await_sleepers(&place, 1);
        let begin = Instant::now();
        waiter.signal(signal);
        waiter.wait().signal(signal).stdout("").quiet();
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}");
        wait::until("the waiter's connections to be gone", || {
            match traces(&place) {
                [connections, _, waiters] if [&*connections, &*waiters] == ["1", "0"] => Ok(()),
                left => Err(format!("{left:?}")),
            }
        });
        assert_eq!(sleepers(&place), 0);
    }
    gate.open();
    holder.wait().code(0).quiet();
    await_no_traces(&place);
}

fn waiters_outlive_a_holder_that_is_killed(place: &Place) {
    let gate = place.gate();
    let holder = hold(place, &["--ttl", "3s"], &gate);
    let token = place.row("k").token;
    let waiters: Vec<_> = (1..=3)
        .map(|count| {
            let waiter = waiting(place).job("echo $DBLOCK_TOKEN").start();
            await_waiters(place, count);
            waiter
        })
        .collect();
    holder.signal(SIGKILL);
    holder.wait().fails();
    let mut tokens = vec![token];
    for waiter in waiters {
        let output = waiter.wait().code(0).quiet();
        tokens.push(output.text().trim().parse().expect("a token"));
    }
    tokens[1..].sort_unstable();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    await_waiters(place, 0);
    place.assert_free("k");
}

fn a_waiter_that_is_killed_stands_in_nobodys_way(place: &Place) {
    let gate = place.gate();
    let holder = hold(place, &[], &gate);
    let first = waiting(place).job("echo ran").start();
    await_waiters(place, 1);
    let second = waiting(place).job("echo ran").start();
    await_waiters(place, 2);
    first.signal(SIGKILL);
    first.wait().fails().stdout("");
    gate.open();
    holder.wait().code(0).quiet();
    let begin = Instant::now();
    second.wait().code(0).quiet().stdout("ran\n");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    place.assert_free("k");
    // The dead one's row stays until it is forgotten.
    assert_eq!(waiters(place), 1);
}

#[test]
fn who_comes_first_is_served_first() {
    const WAITERS: usize = 6;
    let place = Place::mariadb();
    let (gate, order) = (place.gate(), place.file("order"));
    let holder = hold(&place, &[], &gate);
    let waiters: Vec<_> = (1..=WAITERS)
        .map(|number| {
            let job = format!("echo {number} >> '{}'", order.display());
            let waiter = waiting(&place).job(&job).start();
            await_sleepers(&place, number);
            waiter
        })
        .collect();
    gate.open();
    holder.wait().code(0).quiet();
    for waiter in waiters {
        waiter.wait().code(0).quiet();
    }
    let order = fs::read_to_string(order).expect("the jobs wrote");
    assert_eq!(order, "1\n2\n3\n4\n5\n6\n");
    await_no_traces(&place);
}

#[test]
fn a_waiter_whose_connection_is_cut_goes_on() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let gate = place.gate();
    let holder = hold(&place, &[], &gate);
    let waiter = waiting(&place).env("DBLOCK_URL", place.database().url_at(proxy.port()));
    let waiter = waiter.job("echo ran").start();
    await_sleepers(&place, 1);
    let connections = proxy.connections();
    proxy.cut();
    wait::until("a new connection", || {
        if proxy.connections() > connections {
            Ok(())
        } else {
            Err(waiter.facts())
        }
    });
    waiter.assert_running();
    gate.open();
    holder.wait().code(0).quiet();
    waiter.wait().code(0).quiet().stdout("ran\n");
    await_no_traces(&place);
}

#[test]
fn a_waiter_outlives_a_restart_of_the_server() {
    let server = Server::start();
    let place = Place::on(&server);
    let gate = place.gate();
    let holder = hold(&place, &[], &gate);
    let waiter = waiting(&place).job("echo ran").start();
    await_sleepers(&place, 1);
    server.kill();
    server.start_again();
    await_waiters(&place, 1);
    waiter.assert_running();
    gate.open();
    holder.wait().code(0);
    waiter.wait().code(0).quiet().stdout("ran\n");
    await_no_traces(&place);
}

#[test]
fn who_polls_does_not_use_the_servers_queue() {
    let server = Server::start();
    server.execute("SET GLOBAL log_output = 'TABLE'");
    server.execute("SET GLOBAL general_log = ON");
    let asked = |place: &Place<'_>, how: &str| -> usize {
        server.execute("TRUNCATE mysql.general_log");
        let gate = place.gate();
        let holder = hold(place, &["--wake", how], &gate);
        let waiter = waiting(place).args(["--wake", how]).job("echo ran").start();
        await_waiters(place, 1);
        if how == "auto" {
            await_sleepers(place, 1);
        }
        gate.open();
        holder.wait().code(0).quiet();
        waiter.wait().code(0).quiet().stdout("ran\n");
        // Split, so that this statement does not find itself.
        let found = "SELECT COUNT(*) FROM mysql.general_log \
                     WHERE argument LIKE CONCAT('%GET', '_LOCK%')";
        let count = server.try_query(found).expect("the log can be read");
        count[0][0].parse().expect("a number")
    };
    let place = Place::on(&server);
    assert!(asked(&place, "auto") > 0, "the log shows it");
    assert_eq!(asked(&place, "poll"), 0);
    await_no_traces(&place);
}

#[test]
fn an_account_that_may_not_show_itself_waits_unseen() {
    let place = Place::mariadb();
    let database = place.database();
    let (name, user) = (database.name(), database.user());
    let server = database.server();
    server.execute(&format!("REVOKE ALL ON {name}.* FROM {user}@'%'"));
    server.execute(&format!(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.dblock_lock TO {user}@'%'"
    ));
    server.execute(&format!("GRANT SELECT ON {name}.dblock_meta TO {user}@'%'"));
    let gate = place.gate();
    let holder = hold(&place, &[], &gate);
    let waiter = waiting(&place).job("echo ran").start();
    await_sleepers(&place, 1);
    assert_eq!(status(&place)[0]["waiters"], Value::Array(Vec::new()));
    gate.open();
    holder.wait().code(0).quiet();
    waiter.wait().code(0).quiet().stdout("ran\n");
    await_no_traces(&place);
}

// Numbers.

/// Whether there is time for the large crowds, and how much for one test.
fn long() -> Option<Duration> {
    let seconds = env::var("DBLOCK_TEST_SECONDS").ok()?;
    let seconds = seconds.parse().expect("DBLOCK_TEST_SECONDS is a number");
    Some(Duration::from_secs(seconds))
}

/// Tells what was measured to those who run a test for long.
fn tell(text: &str) {
    if long().is_some() {
        writeln!(std::io::stderr(), "{text}").ok();
    }
}

/// Returns the numbers, one a line, that a file's jobs wrote.
#[track_caller]
fn numbers(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).expect("the jobs wrote");
    let parsed = text.lines().map(|line| line.parse().expect("a number"));
    parsed.collect()
}

/// From the last word of one job to the first of the next. Who polls needs
/// some hundred milliseconds, and seconds after it has waited for long; and
/// who polls is not asleep for long.
#[test]
fn the_next_is_woken_at_once() {
    const TURNS: usize = 9;
    const ASLEEP: &str = "SELECT COUNT(*) FROM information_schema.processlist \
                          WHERE db = DATABASE() AND state = 'User lock' AND time_ms > 1500";
    let place = Place::mariadb();
    let mut took = Vec::new();
    for turn in 0..TURNS {
        let (gate, stamps) = (place.gate(), place.file(&format!("stamps-{turn}")));
        let stamp = format!("date +%s%N >> '{}'", stamps.display());
        let job = format!("{}; {stamp}", gate.wait());
        let holder = place.run("k").job(&job).start();
        wait::until("the holder", || match place.rows("k").len() {
            1 => Ok(()),
            _ => Err(holder.facts()),
        });
        let waiter = waiting(&place).job(&stamp).start();
        await_sleepers(&place, 1);
        if turn == 0 {
            wait::until("the waiter to sleep for long", || {
                let asleep = place.query(ASLEEP);
                if asleep == [["1"]] {
                    Ok(())
                } else {
                    Err(format!("{asleep:?}"))
                }
            });
        }
        gate.open();
        holder.wait().code(0).quiet();
        waiter.wait().code(0).quiet();
        let stamps = numbers(&stamps);
        took.push(Duration::from_nanos(stamps[1] - stamps[0]));
    }
    took.sort_unstable();
    assert!(took[TURNS / 2] < Duration::from_millis(500), "{took:?}");
    tell(&format!("from job to job: {took:?}"));
}

/// Statements that the server has been sent so far. The question itself is one.
#[track_caller]
fn questions(server: &Server) -> u64 {
    let status = server
        .try_query("SHOW GLOBAL STATUS LIKE 'Questions'")
        .expect("the server answers");
    status[0][1].parse().expect("a number")
}

/// What came of a crowd of waiters.
struct Crowd {
    /// From when the key was free until each job began, sorted.
    waits: Vec<Duration>,
    /// Statements a second while they waited.
    rate: f64,
}

/// Has many wait for a key, counts what that costs the server for some time,
/// and lets them all have it.
fn crowd(server: &Server, count: usize, window: Duration) -> Crowd {
    let place = Place::on(server);
    let (gate, alone, stamps) = (place.gate(), place.file("alone"), place.file("stamps"));
    let holder = hold(&place, &[], &gate);
    let (alone, file) = (alone.display(), stamps.display());
    let job = format!(
        "mkdir '{alone}' || echo overlap; date +%s%N >> '{file}'; rmdir '{alone}' || echo overlap"
    );
    let running: Vec<_> = (0..count)
        .map(|_| waiting(&place).arg("--quiet").job(&job).start())
        .collect();
    let shown = format!(
        "SELECT COUNT(*) FROM {}.dblock_waiter",
        place.database().name()
    );
    wait::within(LONG_LIMIT * 3, "all to wait", || {
        // As long as all come at once, there may be no connection to be had.
        match server.try_query(&shown) {
            Ok(rows) if rows == [[count.to_string()]] => Ok(()),
            other => Err(format!("{other:?} of {count}")),
        }
    });
    let (before, begin) = (questions(server), Instant::now());
    thread::sleep(window);
    let asked = questions(server) - before - 1;
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = asked as f64 / begin.elapsed().as_secs_f64();
    // Other clients can still connect.
    place.run("other").job("true").run().code(0).quiet();

    gate.open();
    let limit = Instant::now() + LONG_LIMIT * 5;
    holder.wait().code(0).quiet();
    for one in running {
        let left = limit.saturating_duration_since(Instant::now());
        wait::within(left, "a waiter to be served", || {
            if one.process().is_alive() {
                Err(one.facts())
            } else {
                Ok(())
            }
        });
        one.wait().code(0).quiet().stdout("");
    }
    place.assert_free("k");
    await_no_traces(&place);
    let stamps = numbers(&stamps);
    assert_eq!(stamps.len(), count, "each was served once");
    let from_first = |stamp: &u64| Duration::from_nanos(stamp - stamps[0]);
    Crowd {
        waits: stamps.iter().map(from_first).collect(),
        rate,
    }
}

impl Crowd {
    fn tell(&self, what: &str) {
        let sum: Duration = self.waits.iter().sum();
        let mean = sum / u32::try_from(self.waits.len()).expect("a crowd");
        let last = self.waits.last().expect("a crowd");
        tell(&format!(
            "{what}: {:.1} statements/s while waiting; served within {last:?}, {mean:?} on average",
            self.rate
        ));
    }
}

#[test]
fn a_crowd_costs_few_statements() {
    let (count, window) = match long() {
        Some(_) => (100, Duration::from_secs(60)),
        None => (40, Duration::from_secs(5)),
    };
    let server = Server::start();
    let crowd = crowd(&server, count, window);
    crowd.tell(&format!("{count} waiters"));
    assert!(crowd.rate <= 20.0, "{} statements a second", crowd.rate);
}

/// More waiters than the server has connections: 64 keep one, the others come
/// now and then.
#[test]
fn a_crowd_may_be_larger_than_the_server_has_connections() {
    let (count, connections, window) = match long() {
        Some(_) => (600, "--max-connections=151", Duration::from_secs(60)),
        None => (72, "--max-connections=70", Duration::ZERO),
    };
    let server = Server::start_with(&[connections]);
    crowd(&server, count, window).tell(&format!("{count} waiters, {connections}"));
}

/// Slots, and processes that go for them in turn.
const SLOTS: usize = 5;
const PROCESSES: usize = 40;

/// The longest time for which a slot may be free although somebody wants it.
/// In a test it is a matter of what else the machine does.
const SLOT_FREE: Duration = Duration::from_secs(5);

fn five_slots_are_used_by_many(place: &Place) {
    let witness = place.file("witness");
    let job = format!(
        "echo $(date +%s%N) 1 >> '{0}'; sleep 0.$((2 + $$ % 6)); echo $(date +%s%N) -1 >> '{0}'",
        witness.display()
    );
    let limit = Instant::now() + long().unwrap_or(Duration::from_secs(6));
    let in_turn = || {
        let mut longest = Duration::ZERO;
        while Instant::now() < limit {
            let run = place.run("k").args(["--slots", "5", "--wait", "--quiet"]);
            let running = run.job(&job).start();
            let left = limit.saturating_duration_since(Instant::now());
            wait::within(left + LONG_LIMIT, "a slot", || {
                if running.process().is_alive() {
                    Err(running.facts())
                } else {
                    Ok(())
                }
            });
            longest = longest.max(running.wait().code(0).quiet().took);
        }
        longest
    };
    let (end, patience) = thread::scope(|scope| {
        let loops: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(in_turn)).collect();
        thread::sleep(limit.saturating_duration_since(Instant::now()));
        let end = now_ns();
        let longest = loops
            .into_iter()
            .map(|one| one.join().expect("it ends well"));
        (end, longest.max())
    });
    let (grants, longest) = assert_shared(&witness, end);
    tell(&format!(
        "{PROCESSES} processes, {SLOTS} slots: {grants} grants, a slot free for {longest:?}, \
         a call took {patience:?} at most"
    ));
    assert!(longest < SLOT_FREE, "a slot was free for {longest:?}");
    place.assert_free("k");
    await_waiters(place, 0);
}

/// Nobody comes anew: it is those who wait already that must notice.
fn a_slot_that_is_given_back_is_taken_soon(place: &Place) {
    let witness = place.file("witness");
    let job = format!(
        "echo $(date +%s%N) 1 >> '{0}'; sleep 0.$((2 + $$ % 6)); echo $(date +%s%N) -1 >> '{0}'",
        witness.display()
    );
    let calls: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let run = place.run("k").args(["--slots", "5", "--wait", "--quiet"]);
            run.job(&job).start()
        })
        .collect();
    for one in calls {
        one.wait().code(0).quiet();
    }
    let (grants, longest) = assert_shared(&witness, now_ns());
    assert_eq!(grants, PROCESSES);
    tell(&format!(
        "{PROCESSES} waiters, {SLOTS} slots: a slot free for {longest:?}"
    ));
    assert!(longest < SLOT_FREE, "a slot was free for {longest:?}");
    place.assert_free("k");
    await_waiters(place, 0);
}

fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.expect("it is after 1970").as_nanos()).expect("it is before 2500")
}

/// Checks that no more jobs ran at a time than there are slots; returns how
/// many there were, and for how long at most fewer ran while all wanted to.
#[track_caller]
fn assert_shared(witness: &Path, end: u64) -> (usize, Duration) {
    let text = fs::read_to_string(witness).expect("the jobs wrote");
    let mut steps: BTreeMap<u64, i64> = BTreeMap::new();
    for line in text.lines() {
        let (moment, step) = line.split_once(' ').expect("two words");
        let moment: u64 = moment.parse().expect("a time");
        *steps.entry(moment).or_default() += step.parse::<i64>().expect("a number");
    }
    let slots = i64::try_from(SLOTS).expect("few");
    let (mut running, mut longest, mut short_since) = (0, 0, None);
    for (moment, step) in steps {
        running += step;
        assert!((0..=slots).contains(&running), "{running} at once");
        if running == slots {
            let since = short_since.take().unwrap_or(moment);
            longest = longest.max(moment.min(end).saturating_sub(since));
        } else if step < 0 && short_since.is_none() {
            short_since = Some(moment);
        }
    }
    (text.lines().count() / 2, Duration::from_nanos(longest))
}
