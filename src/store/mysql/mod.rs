//! Locks in MySQL or MariaDB.
//!
//! `mod.rs` speaks the protocol, [`sql`] writes the statements, [`link`] sends
//! them, [`mod@connect`] makes connections, [`fault`] sorts errors and
//! [`schema`] judges tables. None of them retries, sleeps or shows a secret.
//!
//! Each operation is one packet of one or more statements and decides by the
//! result of its single writing statement, so that neither a proxy which
//! changes connections between packets nor a lagging replica can change what
//! it means.

mod connect;
mod fault;
mod link;
mod schema;
mod sql;

use std::fmt;
use std::time::Duration;

use mysql::Row;
use mysql::prelude::FromValue;

use super::url::{Host, Parts, Secret, UrlError, parse};
use super::{
    Acquired, Canceller, End, Endpoint, Initialized, Limits, Place, Released, Renewed, Revive,
    Store, StoreError, Turn, WAITER_FORGOTTEN, Waited,
};
use crate::clock::{self, Tick};
use crate::lock::{
    Claimant, Grant, Holder, Key, Kind, Moments, Owner, Phase, Request, State, Token, Ttl, Waiter,
};
use link::{Answer, Link};

const DEFAULT_PORT: u16 = 3306;

/// How to reach the server, understood from a URL.
#[derive(Clone)]
struct Server {
    user: Option<String>,
    password: Option<Secret>,
    hosts: Vec<Host>,
    socket: Option<String>,
    database: String,
}

/// Shows the server without its secret.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.socket {
            return write!(f, "the socket {path}");
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{host}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mysql at {self}")
    }
}

/// Understands the part of a `mysql:` URL behind the colon.
pub(super) fn endpoint(
    rest: &str,
    password: Option<Secret>,
) -> Result<Box<dyn Endpoint>, UrlError> {
    let Parts {
        user,
        password: own,
        hosts,
        database,
        parameters,
    } = parse(rest, DEFAULT_PORT)?;
    let mut socket = None;
    for (name, value) in parameters {
        match name.as_str() {
            "socket" => socket = Some(value),
            _ => {
                return Err(UrlError::new(
                    "unknown parameter behind the '?'; known is: socket",
                ));
            }
        }
    }
    if database.is_empty() {
        return Err(UrlError::new(
            "the database is missing: expected mysql://USER@HOST[:PORT]/DATABASE",
        ));
    }
    if hosts.is_empty() && socket.is_none() {
        return Err(UrlError::new(
            "the host is missing: expected mysql://USER@HOST[:PORT]/DATABASE",
        ));
    }
    Ok(Box::new(Server {
        user,
        password: own.or(password),
        hosts,
        socket,
        database,
    }))
}

impl Endpoint for Server {
    fn open(&self, limits: Limits) -> Box<dyn Store> {
        Box::new(MysqlStore {
            link: Link::new(self.clone(), limits),
            schema_is_right: false,
            queue: limits.queue,
            keeps_baton: false,
            refusals: 0,
            shown: None,
        })
    }

    fn table(&self) -> Option<String> {
        Some(sql::qualified_table(&self.database))
    }
}

/// Returns the statement of [`crate::store::fence`].
pub(super) fn fence(table: &str, grant: &Grant) -> String {
    sql::fence(table, grant)
}

#[derive(Debug)]
struct MysqlStore {
    link: Link,
    /// Whether the tables have been judged once. They are judged in the same
    /// packet as the first attempt to acquire.
    schema_is_right: bool,
    /// Whether waiters sleep in the server's queue and holders wake them.
    queue: bool,
    /// Whether the holder of what is asked for keeps the baton, to wake the
    /// next waiter: the holder of one among several slots does not.
    keeps_baton: bool,
    /// How often in a row the way into the queue has ended in an error.
    refusals: u32,
    /// When the waiter last put itself into the table, and its place then.
    shown: Option<(Tick, Option<Place>)>,
}

/// Longest sleep in the server's queue, in seconds: so often a waiter shows
/// that it is still there.
const SLEEP_SECONDS: u64 = 60;
/// How often a waiter tries to get into the queue before it only looks. A
/// server may have none, such as a cluster that refuses user-level locks.
const TRIES: u32 = 3;
/// How many waiters of a key keep a connection.
const CONNECTED: u64 = 64;

impl MysqlStore {
    fn describe(&mut self) -> Result<(), StoreError> {
        let answers = self.link.exchange_all(&sql::describe_tables())?;
        schema::judge(&answers)
    }

    /// Removes what a refused table let us insert; the refusal stands whether
    /// this works or not.
    fn take_back(&mut self, owner: &Owner) {
        self.link.exchange_all(&[sql::delete_by_owner(owner)]).ok();
    }
}

impl MysqlStore {
    /// Shows that the waiter is there, unless it did so lately, and returns its
    /// place. An account that may not do that waits unseen.
    fn show(&mut self, waiter: &Waiter) -> Result<Option<Place>, StoreError> {
        if let Some((at, place)) = self.shown
            && clock::now() - at < WAITER_FORGOTTEN / 9
        {
            return Ok(place);
        }
        let packet = [sql::show_waiter(waiter), sql::place(waiter)];
        match self.link.exchange_all(&packet) {
            Ok(answers) => {
                let place = answers[1].rows.first().map(read_place).transpose()?;
                self.shown = Some((clock::now(), place));
                Ok(place)
            }
            Err(StoreError::Denied(_) | StoreError::Schema(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Store for MysqlStore {
    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError> {
        let mut packet = Vec::new();
        if !self.schema_is_right {
            packet.push(sql::may_delete());
            packet.extend(sql::describe_tables());
        }
        let judged = packet.len();
        if !request.former.is_empty() {
            packet.push(sql::forget(&request.key, &request.former));
        }
        packet.push(sql::forget_insert_id());
        let insert = packet.len();
        packet.push(sql::acquire(request, sql::Round::First));
        packet.push(sql::acquire(request, sql::Round::Second));
        packet.push(sql::holders(Some(&request.key)));
        self.keeps_baton = self.queue && request.kind == Kind::Run && request.terms.slots == 1;
        if self.keeps_baton && !self.link.has_baton() {
            packet.push(sql::take_baton(&request.key));
        }
        let mut exchange = self.link.exchange(&packet);

        // Judged first: a table that is wrong may also make the attempt fail,
        // and then the cause is of more use than the error.
        if judged != 0 && exchange.answers.len() >= judged {
            if let Err(fault) = schema::judge(&exchange.answers[1..judged]) {
                if exchange.answers.len() > insert {
                    self.take_back(&request.owner);
                }
                return Err(fault);
            }
            self.schema_is_right = true;
        }
        // A grant is told by the token that the OK packet carries. The number
        // of affected rows would do only as long as nothing on the way sets
        // CLIENT_FOUND_ROWS, which makes a busy key report one row as well.
        let first = exchange.answer(insert)?.last_insert_id;
        let second = exchange.answer(insert + 1)?.last_insert_id;
        let token = if second == 0 { first } else { second };
        let rows = exchange
            .answers
            .get(insert + 2)
            .map_or(Ok(Vec::new()), holders)?;
        if token == 0 {
            return Ok(Acquired::Busy(rows));
        }
        self.link.set_holding(true);
        let grant = Grant {
            key: request.key.clone(),
            slot: request.slot,
            owner: request.owner.clone(),
            token: Token(token),
        };
        Ok(Acquired::granted(grant, request, rows))
    }

    fn renew(&mut self, grant: &Grant, ttl: Ttl, revive: Revive) -> Result<Renewed, StoreError> {
        let packet = [
            sql::renew(grant, ttl, revive),
            sql::holders(Some(&grant.key)),
        ];
        let mut exchange = self.link.exchange(&packet);
        if exchange.answer(0)?.affected > 0 {
            return Ok(Renewed::Extended);
        }
        let rows = holders(exchange.answer(1)?)?;
        // No row was changed, yet a row of ours that could have been is there:
        // the two statements were answered by servers that do not agree.
        // A row that was given back and is kept shut could not have been.
        let contradicts = rows.iter().any(|row| {
            row.grant == *grant
                && match row.state {
                    State::Held => true,
                    State::Expired => revive == Revive::Allowed,
                    State::Closing | State::Done | State::Blocked => false,
                }
        });
        if contradicts {
            return Err(StoreError::Unavailable(format!(
                "the answers of {} contradict each other: is it a lagging replica?",
                self.link
            )));
        }
        Ok(Renewed::Lost(rows))
    }

    fn release(&mut self, grant: &Grant, end: End) -> Result<Released, StoreError> {
        let mut packet = vec![sql::release(grant, end)];
        if self.keeps_baton {
            packet.push(sql::pass_baton(&grant.key));
        }
        let mut exchange = self.link.exchange(&packet);
        let gone = exchange.answer(0)?.affected > 0;
        self.link.set_baton(false);
        let closed = match end {
            End::Finished { succeeded } if !gone => {
                let answers = self.link.exchange_all(&[sql::close(grant, succeeded)])?;
                answers[0].affected > 0
            }
            _ => false,
        };
        self.link.set_holding(false);
        Ok(if gone || closed {
            Released::Released
        } else {
            Released::NotHeld
        })
    }

    fn wait(&mut self, waiter: &Waiter, limit: Duration) -> Result<Waited, StoreError> {
        let place = self.show(waiter)?;
        let answer = |turn| Ok(Waited { turn, place });
        if self.link.has_baton() {
            return answer(Turn::First);
        }
        if place.is_some_and(|place| place.ahead >= CONNECTED) {
            self.link.part();
            return answer(Turn::Far);
        }
        // MySQL rounds to whole seconds.
        let seconds = limit.as_secs().min(SLEEP_SECONDS);
        if !self.queue || seconds == 0 {
            return answer(Turn::NoQueue);
        }
        let asked = sql::queue(&waiter.key, seconds);
        let got = self
            .link
            .exchange_later(asked, Duration::from_secs(seconds));
        self.refusals = got.as_ref().map_or(self.refusals + 1, |_| 0);
        self.queue = self.refusals < TRIES;
        let got = got?;
        let got = got
            .rows
            .first()
            .and_then(|row| row.get_opt::<Option<u8>, _>(0));
        match got {
            Some(Ok(Some(1))) => {
                self.link.set_baton(true);
                answer(Turn::Look)
            }
            Some(Ok(Some(_))) => answer(Turn::Look),
            _ => answer(Turn::NoQueue),
        }
    }

    fn waiters(&mut self, key: Option<&Key>) -> Result<Vec<Waiter>, StoreError> {
        let answers = self.link.exchange_all(&[sql::waiters(key)])?;
        answers[0].rows.iter().map(read_waiter).collect()
    }

    fn block(
        &mut self,
        key: &Key,
        length: Option<Duration>,
        claimant: &Claimant,
    ) -> Result<(), StoreError> {
        let packet = [sql::block(key, length, claimant)];
        self.link.exchange_all(&packet).map(drop)
    }

    fn unblock(&mut self, key: &Key) -> Result<bool, StoreError> {
        let answers = self.link.exchange_all(&sql::unblock(key))?;
        Ok(answers[0].affected > 0)
    }

    fn forget(&mut self, key: &Key, owners: &[Owner]) -> Result<(), StoreError> {
        if owners.is_empty() {
            return Ok(());
        }
        let mut packet = vec![sql::forget(key, owners)];
        if self.shown.take().is_some() {
            packet.push(sql::forget_waiters(owners));
        }
        let passes = self.link.has_baton() && !self.keeps_baton;
        if passes {
            packet.push(sql::pass_baton(key));
        }
        self.link.exchange_all(&packet)?;
        if passes {
            self.link.set_baton(false);
        }
        Ok(())
    }

    fn holders(&mut self, key: Option<&Key>) -> Result<Vec<Holder>, StoreError> {
        let answers = self.link.exchange_all(&[sql::holders(key)])?;
        holders(&answers[0])
    }

    fn canceller(&self) -> Option<Box<dyn Canceller>> {
        Some(Box::new(self.link.canceller()))
    }

    fn init(&mut self) -> Result<Initialized, StoreError> {
        // Tables that are right are left alone, so that an account without
        // the right to create tables can repeat `dblock init`.
        match self.describe() {
            Ok(()) => {
                self.link.exchange_all(&sql::lift_token())?;
                Ok(Initialized::Unchanged)
            }
            Err(StoreError::Schema(_)) => {
                self.link.exchange_all(&sql::create_tables())?;
                self.describe()?;
                Ok(Initialized::Created)
            }
            Err(other) => Err(other),
        }
    }
}

/// Reads the rows of [`sql::holders`].
fn holders(answer: &Answer) -> Result<Vec<Holder>, StoreError> {
    let read = answer.rows.iter().filter_map(|row| holder(row).transpose());
    read.collect()
}

/// Reads a row, or nothing if it means nothing any more.
fn holder(row: &Row) -> Result<Option<Holder>, StoreError> {
    let mut columns = Columns { row, next: 0 };
    let grant = Grant {
        key: Key::from_store(columns.text()?),
        slot: columns.get()?,
        owner: Owner::from_store(columns.text()?),
        token: Token(columns.get()?),
    };
    let moments = Moments {
        phase: Phase::from_store(&columns.text()?),
        lease: columns.get()?,
        delay: columns.get()?,
        keep: columns.get()?,
        done: columns.get()?,
    };
    let Some((state, remaining)) = moments.state() else {
        return Ok(None);
    };
    let acquired_at: Option<i64> = columns.get()?;
    let held: Option<i64> = columns.get()?;
    let renewals = columns.get()?;
    let ttl: u64 = columns.get()?;
    Ok(Some(Holder {
        grant,
        state,
        remaining: Duration::from_millis(remaining),
        acquired_at,
        held: millis(held.unwrap_or(0)),
        renewals,
        ttl: Duration::from_millis(ttl),
        slots: columns.get()?,
        kind: Kind::from_store(&columns.text()?),
        claimant: Claimant {
            host: columns.text()?,
            pid: columns.get()?,
            user: columns.text()?,
            command: columns.text()?,
            note: columns
                .get::<Option<Vec<u8>>>()?
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        },
    }))
}

/// Reads a row of [`sql::waiters`].
fn read_waiter(row: &Row) -> Result<Waiter, StoreError> {
    let mut columns = Columns { row, next: 0 };
    Ok(Waiter {
        id: Owner::from_store(columns.text()?),
        key: Key::from_store(columns.text()?),
        host: columns.text()?,
        pid: columns.get()?,
        user: columns.text()?,
        waiting: millis(columns.get()?),
    })
}

/// Reads the row of [`sql::place`].
fn read_place(row: &Row) -> Result<Place, StoreError> {
    let mut columns = Columns { row, next: 0 };
    Ok(Place {
        waiting: columns.get()?,
        ahead: columns.get()?,
    })
}

fn millis(number: i64) -> Duration {
    Duration::from_millis(u64::try_from(number).unwrap_or(0))
}

/// Reads a row from left to right; a strange row is an error, never a panic.
struct Columns<'a> {
    row: &'a Row,
    next: usize,
}

impl Columns<'_> {
    fn get<T: FromValue>(&mut self) -> Result<T, StoreError> {
        let column = self.next;
        self.next += 1;
        match self.row.get_opt(column) {
            Some(Ok(value)) => Ok(value),
            Some(Err(_)) | None => Err(StoreError::Schema(format!(
                "column {} of a row in dblock_lock holds something unexpected",
                column + 1
            ))),
        }
    }

    /// Text is read as bytes, because a row that another program wrote may
    /// hold anything.
    fn text(&mut self) -> Result<String, StoreError> {
        let bytes: Vec<u8> = self.get()?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
