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

use mysql::Row;
use mysql::prelude::FromValue;

use super::url::{Host, Parts, Secret, UrlError, parse};
use super::{
    Acquired, Canceller, Endpoint, Initialized, Limits, Released, Renewed, Revive, Store,
    StoreError,
};
use crate::lock::{Claimant, Grant, Holder, Key, Kind, Owner, Request, State, Token, Ttl};
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
        })
    }
}

#[derive(Debug)]
struct MysqlStore {
    link: Link,
    /// Whether the tables have been judged once. They are judged in the same
    /// packet as the first attempt to acquire.
    schema_is_right: bool,
}

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
        packet.push(sql::acquire(request, sql::Turn::First));
        packet.push(sql::acquire(request, sql::Turn::Second));
        packet.push(sql::holders(Some(&request.key)));
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
        if token == 0 {
            let rows = exchange
                .answers
                .get(insert + 2)
                .map_or(Ok(Vec::new()), holders)?;
            return Ok(Acquired::Busy(rows));
        }
        self.link.set_holding(true);
        Ok(Acquired::Granted(Grant {
            key: request.key.clone(),
            slot: 0,
            owner: request.owner.clone(),
            token: Token(token),
        }))
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
        let contradicts = rows.iter().any(|row| {
            row.grant == *grant && (revive == Revive::Allowed || row.state == State::Held)
        });
        if contradicts {
            return Err(StoreError::Unavailable(format!(
                "the answers of {} contradict each other: is it a lagging replica?",
                self.link
            )));
        }
        Ok(Renewed::Lost(rows))
    }

    fn release(&mut self, grant: &Grant) -> Result<Released, StoreError> {
        let answers = self.link.exchange_all(&[sql::release(grant)])?;
        self.link.set_holding(false);
        if answers[0].affected > 0 {
            Ok(Released::Released)
        } else {
            Ok(Released::NotHeld)
        }
    }

    fn forget(&mut self, key: &Key, owners: &[Owner]) -> Result<(), StoreError> {
        if owners.is_empty() {
            return Ok(());
        }
        self.link
            .exchange_all(&[sql::forget(key, owners)])
            .map(drop)
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
    answer.rows.iter().map(holder).collect()
}

fn holder(row: &Row) -> Result<Holder, StoreError> {
    let mut columns = Columns { row, next: 0 };
    let grant = Grant {
        key: Key::from_store(columns.text()?),
        slot: columns.get()?,
        owner: Owner::from_store(columns.text()?),
        token: Token(columns.get()?),
    };
    let remaining: i64 = columns.get()?;
    let acquired_at: Option<i64> = columns.get()?;
    let held: Option<i64> = columns.get()?;
    let renewals = columns.get()?;
    let ttl: u64 = columns.get()?;
    Ok(Holder {
        grant,
        state: if remaining > 0 {
            State::Held
        } else {
            State::Expired
        },
        remaining: millis(remaining),
        acquired_at,
        held: millis(held.unwrap_or(0)),
        renewals,
        ttl: std::time::Duration::from_millis(ttl),
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
    })
}

fn millis(number: i64) -> std::time::Duration {
    std::time::Duration::from_millis(u64::try_from(number).unwrap_or(0))
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
