//! Many clients on one key: dblock's statements against the plain protocol,
//! INSERT, then UPDATE if the row is expired, DELETE at the end.
//!
//! All clients are threads that keep their connection and ask again at once,
//! without the back-off that dblock has above its store: it is the protocol
//! that is measured, at its worst. Both sides take turns of two seconds.

use std::thread;
use std::time::{Duration, Instant};

use dblock::lock::{Claimant, Key, Kind, Owner, Request, Terms, Ttl};
use dblock::store::{self, Acquired, End, Limits, Secret, Store, StoreError};
use mysql::prelude::Queryable as _;
use mysql::{Conn, OptsBuilder};

use crate::report::{Goal, Report};
use crate::setting;
use crate::support::PASSWORD;
use crate::support::database::Database;
use crate::support::server::Server;

const CLIENTS: usize = 64;
const SLICE: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(30);

/// The server's clock, as dblock has it.
const NOW: &str = "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(3)) DIV 1000)";

/// What came of attempts.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    grants: u32,
    busy: u32,
    /// Errors 1213, which the client has to answer by trying again.
    deadlocks: u32,
    time: Duration,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.grants += other.grants;
        self.busy += other.busy;
        self.deadlocks += other.deadlocks;
        self.time += other.time;
    }
}

/// One client of a protocol.
trait Client: Send {
    /// Tries once to take the key and gives it back if it was granted.
    fn attempt(&mut self, tally: &mut Tally);
}

pub(crate) fn measure(report: &mut Report) {
    let database = Database::new(Server::shared());
    database.query(
        "CREATE TABLE plain_lock (lock_key VARBINARY(255) PRIMARY KEY, \
         owner_id CHAR(36) CHARACTER SET ascii NOT NULL, expire_at BIGINT NOT NULL) ENGINE=InnoDB",
    );
    let mut dblock: Vec<_> = (0..CLIENTS).map(|_| Dblock::new(&database)).collect();
    let mut plain: Vec<_> = (0..CLIENTS).map(|n| Plain::new(&database, n)).collect();
    // Everybody connects before anything is counted.
    slice(&mut dblock, Duration::ZERO);
    slice(&mut plain, Duration::ZERO);

    let seconds = setting("DBLOCK_BENCH_SECONDS", 10);
    let slices = seconds.div_ceil(2).max(1);
    let (mut ours, mut theirs) = (Tally::default(), Tally::default());
    for _ in 0..slices {
        ours.add(slice(&mut dblock, SLICE));
        theirs.add(slice(&mut plain, SLICE));
    }
    let [ours_rate, theirs_rate] =
        [ours, theirs].map(|tally| f64::from(tally.grants) / tally.time.as_secs_f64());
    report.row(
        &format!("{CLIENTS} clients on one key: grants, dblock / plain protocol"),
        Goal::None,
        &format!(
            "{ours_rate:.0} / {theirs_rate:.0} grants/s; busy answers {} / {}; \
             errors 1213 {} / {}; {:.0} / {:.0} s",
            ours.busy,
            theirs.busy,
            ours.deadlocks,
            theirs.deadlocks,
            ours.time.as_secs_f64(),
            theirs.time.as_secs_f64()
        ),
        ours_rate / theirs_rate,
    );
}

/// Lets all clients try for some time, at least once each.
fn slice(clients: &mut [impl Client], length: Duration) -> Tally {
    let begin = Instant::now();
    let end = begin + length;
    let serve = |client: &mut dyn Client| {
        let mut tally = Tally::default();
        loop {
            client.attempt(&mut tally);
            if Instant::now() >= end {
                return tally;
            }
        }
    };
    let mut sum = Tally::default();
    thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .map(|client| scope.spawn(move || serve(client)))
            .collect();
        for thread in threads {
            sum.add(thread.join().expect("the client works"));
        }
    });
    // Until the last client has its answer, which is after the end.
    sum.time = begin.elapsed();
    sum
}

/// Returns a client of dblock's store.
pub(crate) fn open(database: &Database<'_>) -> Box<dyn Store> {
    let secret = Secret::new(PASSWORD.to_owned());
    let endpoint = store::endpoint(&database.url(), Some(secret)).expect("a URL");
    endpoint.open(Limits::for_command(LIMIT))
}

/// Returns an attempt to take the one key.
pub(crate) fn request() -> Request {
    Request {
        key: Key::new("k").expect("a key"),
        slot: 0,
        terms: Terms::default(),
        ttl: Ttl::new(LIMIT).expect("a TTL"),
        owner: Owner::generate(),
        former: Vec::new(),
        kind: Kind::Run,
        claimant: Claimant::default(),
    }
}

/// A client by dblock's own store.
struct Dblock(Box<dyn Store>);

impl Dblock {
    fn new(database: &Database<'_>) -> Self {
        Self(open(database))
    }
}

impl Client for Dblock {
    fn attempt(&mut self, tally: &mut Tally) {
        let grant = match self.0.acquire(&request()) {
            Ok(Acquired::Granted(grant)) => grant,
            Ok(Acquired::Busy(_) | Acquired::Contested(..)) => {
                tally.busy += 1;
                return;
            }
            Err(error) => return count_deadlock(&error, tally),
        };
        tally.grants += 1;
        while let Err(error) = self.0.release(&grant, End::Dropped) {
            count_deadlock(&error, tally);
        }
    }
}

fn count_deadlock(error: &StoreError, tally: &mut Tally) {
    match error {
        StoreError::Transient(text) if text.contains("(1213)") => {
            tally.deadlocks += 1;
        }
        other => panic!("{other}"),
    }
}

/// A client by the plain protocol.
struct Plain {
    connection: Conn,
    owner: String,
}

impl Plain {
    fn new(database: &Database<'_>, number: usize) -> Self {
        let options = OptsBuilder::new()
            .ip_or_hostname(Some("127.0.0.1"))
            .tcp_port(database.server().port())
            .user(Some(database.user()))
            .pass(Some(PASSWORD))
            .db_name(Some(database.name()))
            .prefer_socket(false)
            .max_allowed_packet(Some(16 << 20))
            .stmt_cache_size(0);
        Self {
            connection: Conn::new(options).expect("the server is there"),
            owner: format!("client {number}"),
        }
    }

    /// Carries out a statement and returns how many rows it changed, or the
    /// number of the server's error.
    fn change(&mut self, sql: &str) -> Result<u64, u16> {
        match self.connection.query_drop(sql) {
            Ok(()) => Ok(self.connection.affected_rows()),
            Err(mysql::Error::MySqlError(error)) => Err(error.code),
            Err(other) => panic!("{other}"),
        }
    }

    /// Returns whether the key was granted.
    fn acquire(&mut self) -> Result<bool, u16> {
        let owner = self.owner.clone();
        let ttl = LIMIT.as_millis();
        let insert = format!("INSERT INTO plain_lock VALUES ('k','{owner}',{NOW}+{ttl})");
        match self.change(&insert) {
            Ok(_) => Ok(true),
            Err(1062) => {
                let update = format!(
                    "UPDATE plain_lock SET owner_id='{owner}', expire_at={NOW}+{ttl} \
                     WHERE lock_key='k' AND expire_at<{NOW}"
                );
                Ok(self.change(&update)? == 1)
            }
            Err(code) => Err(code),
        }
    }
}

impl Client for Plain {
    fn attempt(&mut self, tally: &mut Tally) {
        match self.acquire() {
            Ok(true) => tally.grants += 1,
            Ok(false) => {
                tally.busy += 1;
                return;
            }
            Err(1213) => {
                tally.deadlocks += 1;
                return;
            }
            Err(code) => panic!("error {code}"),
        }
        let delete = format!(
            "DELETE FROM plain_lock WHERE lock_key='k' AND owner_id='{}'",
            self.owner
        );
        loop {
            match self.change(&delete) {
                Ok(_) => return,
                Err(1213) => tally.deadlocks += 1,
                Err(code) => panic!("error {code}"),
            }
        }
    }
}
