//! Waiting: how soon the next has the key, and what many waiters cost.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use dblock::lock::{Grant, Owner, Waiter};
use dblock::store::{Acquired, End, Store, Turn};

use crate::contention::{open, request};
use crate::report::{Goal, Report};
use crate::setting;
use crate::support::database::Database;
use crate::support::place::Place;
use crate::support::server::Server;
use crate::support::wait;
use crate::turns::Turns;

/// How the holder gives the key back.
const DONE: End = End::Finished { succeeded: true };
/// Longest sleep of a waiter.
const SLEEP: Duration = Duration::from_secs(10);
/// Connections that sleep in the server's queue.
const SLEEPERS: &str = "SELECT COUNT(*) FROM information_schema.processlist \
                        WHERE db = DATABASE() AND state = 'User lock'";

/// One waiter on MariaDB: between the stores, and between whole processes.
pub(crate) fn hand_off(report: &mut Report) {
    let turns = setting("DBLOCK_BENCH_TURNS", 300).max(1);
    let stores = between_stores(turns);
    let jobs = between_jobs(turns.div_ceil(6));
    report.row(
        "hand-off: release to the next grant, one waiter (MariaDB)",
        Goal::Millis(10.0),
        &format!("{stores}; from job to job {jobs}"),
        stores.median(),
    );
}

fn await_sleeper(database: &Database<'_>) {
    wait::until("the waiter to sleep", || {
        let sleepers = database.query(SLEEPERS);
        if sleepers == [["1"]] {
            Ok(())
        } else {
            Err(format!("{sleepers:?}"))
        }
    });
}

fn between_stores(turns: u32) -> Turns {
    let database = Database::new(Server::shared());
    let (mut holder, mut next) = (open(&database), open(&database));
    let Ok(Acquired::Granted(mut held)) = holder.acquire(&request()) else {
        panic!("the key is not free");
    };
    let mut taken = Vec::new();
    for _ in 0..turns {
        thread::scope(|scope| {
            let woken = scope.spawn(|| {
                let grant = take_turn(&mut *next);
                (grant, Instant::now())
            });
            await_sleeper(&database);
            let begin = Instant::now();
            holder.release(&held, DONE).expect("the key is released");
            let (grant, end) = woken.join().expect("the waiter is served");
            held = grant;
            taken.push(end - begin);
        });
        std::mem::swap(&mut holder, &mut next);
    }
    Turns::of(taken)
}

/// Waits for the key as dblock does.
fn take_turn(store: &mut dyn Store) -> Grant {
    let key = request().key;
    let waiter = Waiter {
        id: Owner::generate(),
        key: key.clone(),
        host: String::new(),
        pid: 0,
        user: String::new(),
        waiting: Duration::ZERO,
    };
    assert!(matches!(store.acquire(&request()), Ok(Acquired::Busy(_))));
    loop {
        let waited = store.wait(&waiter, SLEEP).expect("an answer");
        assert_ne!(waited.turn, Turn::NoQueue);
        if !store.holders(Some(&key)).expect("an answer").is_empty() {
            continue;
        }
        if let Ok(Acquired::Granted(grant)) = store.acquire(&request()) {
            return grant;
        }
    }
}

fn between_jobs(turns: u32) -> Turns {
    let place = Place::mariadb();
    let mut taken = Vec::new();
    for turn in 0..turns {
        let (gate, stamps) = (place.gate(), place.file(&format!("stamps-{turn}")));
        let stamp = format!("exec date +%s%N >> '{}'", stamps.display());
        let mut holder = place
            .run("k")
            .job(&format!("echo $$; {}; {stamp}", gate.wait()))
            .start();
        holder.job();
        let waiter = place.run("k").arg("--wait").job(&stamp).start();
        await_sleeper(place.database());
        gate.open();
        holder.wait().code(0);
        waiter.wait().code(0);
        let text = fs::read_to_string(stamps).expect("both jobs wrote");
        let moments: Vec<u64> = text
            .lines()
            .map(|line| line.parse().expect("a time"))
            .collect();
        taken.push(Duration::from_nanos(moments[1] - moments[0]));
    }
    Turns::of(taken)
}

/// Processes that wait for one key.
const WAITERS: usize = 100;
/// Seconds in which each of them has stirred once.
const ALL_STIR: u32 = 40;

pub(crate) fn crowd(report: &mut Report) {
    let server = Server::start();
    let place = Place::on(&server);
    let mut holder = place.run("k").job("echo $$; exec sleep 600").start();
    holder.job();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let run = place.run("k").args(["--wait", "--quiet"]);
            run.job("true").start()
        })
        .collect();
    let shown = "SELECT COUNT(*) FROM dblock_waiter";
    wait::within(wait::LIMIT * 6, "all to wait", || {
        let rows = place.query(shown);
        if rows == [[WAITERS.to_string()]] {
            Ok(())
        } else {
            Err(format!("{rows:?}"))
        }
    });
    let seconds = setting("DBLOCK_BENCH_SECONDS", 10).max(ALL_STIR);
    let (before, begin) = (questions(&server), Instant::now());
    thread::sleep(Duration::from_secs(seconds.into()));
    // The question itself is one.
    let asked = questions(&server) - before - 1;
    let rate = f64::from(asked) / begin.elapsed().as_secs_f64();
    report.row(
        &format!("statements of {WAITERS} waiters on one key (MariaDB)"),
        Goal::PerSecond(20.0),
        &format!("{asked} in {seconds} s"),
        rate,
    );
    drop(waiters);
    drop(holder);
}

fn questions(server: &Server) -> u32 {
    let status = server
        .try_query("SHOW GLOBAL STATUS LIKE 'Questions'")
        .expect("the server answers");
    status[0][1].parse().expect("a number")
}
