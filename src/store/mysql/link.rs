//! A connection that makes itself anew, and the one way to send statements.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, Row};

use super::connect::{self, Connected, Peer};
use super::{Server, fault, sql};
use crate::store::{Canceller, Limits, StoreError};

/// The peer of the connection that is open and the server's number of it,
/// shared with the cancellers.
type Live = Arc<Mutex<Option<(Peer, u32)>>>;

/// A server, and the connection to it while there is one.
pub(super) struct Link {
    server: Server,
    limits: Limits,
    open: Option<Connected>,
    holding: bool,
    /// The host to try first.
    first: usize,
    /// How many hosts in a row have said that they are read-only.
    read_only: usize,
    /// Whether the sessions' clocks may be reset. A server that forbids it has
    /// no session with a clock of its own.
    reset_clock: bool,
    live: Live,
}

/// What a server answers to one statement.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) affected: u64,
    pub(super) last_insert_id: u64,
    pub(super) rows: Vec<Row>,
}

/// What came of a packet. The server stops at the first statement that fails;
/// those before it have been carried out, and their answers stand.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) answers: Vec<Answer>,
    error: Option<StoreError>,
}

impl Exchange {
    fn failed(error: StoreError) -> Self {
        Self {
            answers: Vec::new(),
            error: Some(error),
        }
    }

    /// Returns the answer to a statement, or the error that came first.
    pub(super) fn answer(&mut self, number: usize) -> Result<&Answer, StoreError> {
        match self.answers.get(number) {
            Some(answer) => Ok(answer),
            None => Err(self.error.take().unwrap_or_else(|| {
                StoreError::Unavailable("the server did not answer all statements".to_owned())
            })),
        }
    }
}

impl fmt::Debug for Link {
    /// Leaves the connection out: the driver prints passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.server, f)
    }
}

impl Link {
    pub(super) fn new(server: Server, limits: Limits) -> Self {
        Self {
            server,
            limits,
            open: None,
            holding: false,
            first: 0,
            read_only: 0,
            reset_clock: true,
            live: Arc::default(),
        }
    }

    pub(super) fn canceller(&self) -> LinkCanceller {
        LinkCanceller {
            server: self.server.clone(),
            limit: self.limits.connect,
            live: Arc::clone(&self.live),
        }
    }

    /// Tells whether a lease is held through this link. A new connection must
    /// be made within the limit of a call then.
    pub(super) fn set_holding(&mut self, holding: bool) {
        self.holding = holding;
    }

    /// Sends the statements in one packet, connecting first if need be. The
    /// session's settings travel with each packet: a pool on the way may give
    /// each one another connection to the server.
    pub(super) fn exchange(&mut self, statements: &[String]) -> Exchange {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => match self.connect() {
                Ok(open) => open,
                Err(error) => return Exchange::failed(error),
            },
        };
        let mut settings = self.session(open.call);
        let mut answers = Vec::new();
        let mut sent = send(&mut open.conn, &settings, statements, &mut answers);
        if let Err(error) = &sent
            && answers.is_empty()
            && self.reset_clock
            && fault::fixes_clock(error)
        {
            self.reset_clock = false;
            settings = self.session(open.call);
            sent = send(&mut open.conn, &settings, statements, &mut answers);
        }
        let expected = 1 + statements.len();
        let error = match sent {
            Ok(()) if answers.len() == expected => {
                self.read_only = 0;
                self.open = Some(open);
                None
            }
            Ok(()) => Some(StoreError::Unavailable(format!(
                "{} answered {} of {expected} statements",
                self.server,
                answers.len(),
            ))),
            Err(error) => {
                let fault = fault::classify(&error, &self.server);
                if fault.other_host {
                    self.first = open.host + 1;
                }
                if fault.in_step && !answers.is_empty() {
                    self.open = Some(open);
                }
                Some(self.unless_all_are_read_only(fault.error))
            }
        };
        if self.open.is_none() {
            self.set_live(None);
        }
        let answers = answers.split_off(1.min(answers.len()));
        Exchange { answers, error }
    }

    /// Sends a statement that the server is to answer only after `longer` at
    /// the latest.
    pub(super) fn exchange_later(
        &mut self,
        statement: String,
        longer: Duration,
    ) -> Result<Answer, StoreError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => self.connect()?,
        };
        connect::set_limit(&open.conn, open.call + longer);
        self.open = Some(open);
        let mut exchange = self.exchange(&[statement]);
        if let Some(open) = &self.open {
            connect::set_limit(&open.conn, open.call);
        }
        exchange.answer(0)?;
        Ok(exchange.answers.remove(0))
    }

    /// Tells whether the connection that is open has the baton.
    pub(super) fn has_baton(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.baton)
    }

    /// Notes that the connection that is open has the baton, or not any more.
    pub(super) fn set_baton(&mut self, baton: bool) {
        if let Some(open) = &mut self.open {
            open.baton = baton;
        }
    }

    /// Says goodbye to the server until the next statement.
    pub(super) fn part(&mut self) {
        self.open = None;
        self.set_live(None);
    }

    /// Sends statements that must all be answered.
    pub(super) fn exchange_all(
        &mut self,
        statements: &[String],
    ) -> Result<Vec<Answer>, StoreError> {
        let exchange = self.exchange(statements);
        exchange.error.map_or(Ok(exchange.answers), Err)
    }

    fn connect(&mut self) -> Result<Connected, StoreError> {
        let limit = if self.holding {
            self.limits.call
        } else {
            self.limits.connect
        };
        let open = connect::connect(&self.server, self.first, self.limits.call, limit)?;
        self.first = open.host;
        self.set_live(Some((open.peer.clone(), open.conn.connection_id())));
        Ok(open)
    }

    /// A host that may not be written to is left for the next one. Only when
    /// all have said so in turn is the server as a whole read-only.
    fn unless_all_are_read_only(&mut self, error: StoreError) -> StoreError {
        let StoreError::ReadOnly(said) = error else {
            return error;
        };
        self.read_only += 1;
        if self.read_only < self.server.hosts.len() {
            return StoreError::Transient(said);
        }
        self.read_only = 0;
        StoreError::ReadOnly(said)
    }

    fn set_live(&self, live: Option<(Peer, u32)>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = live;
    }

    /// The server must give a blocked statement up before this side does, or
    /// it may carry it out when nobody waits for it any more. Its two limits
    /// add up and are whole seconds; one second is the least.
    fn session(&self, call: Duration) -> String {
        let half = call.saturating_sub(Duration::from_millis(500)) / 2;
        let idle = self.limits.idle.as_secs().saturating_add(60);
        sql::session(
            half.as_secs().max(1),
            idle.clamp(120, 31_536_000),
            self.reset_clock,
        )
    }
}

/// Ends the connection of a link through a second one to the same peer: on
/// another server the same number is somebody else's.
#[derive(Debug)]
pub(super) struct LinkCanceller {
    server: Server,
    limit: Duration,
    live: Live,
}

impl Canceller for LinkCanceller {
    fn cancel(&self) {
        let live = self
            .live
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some((peer, number)) = live
            && let Ok(mut second) = connect::to_peer(&self.server, &peer, self.limit, self.limit)
        {
            // Whether it worked shows in the answer to the call itself.
            send(&mut second, &sql::kill(number), &[], &mut Vec::new()).ok();
        }
    }
}

/// Sends a packet, its first statement first, and reads every result set and every row into `answers`.
/// The driver's shorter ways hide the errors of all statements but the first.
fn send(
    conn: &mut Conn,
    settings: &str,
    statements: &[String],
    answers: &mut Vec<Answer>,
) -> mysql::Result<()> {
    let mut packet = settings.to_owned();
    for statement in statements {
        packet.push_str(";\n");
        packet.push_str(statement);
    }
    let mut result = conn.query_iter(packet)?;
    while let Some(mut set) = result.iter() {
        let mut answer = Answer {
            affected: set.affected_rows(),
            last_insert_id: set.last_insert_id().unwrap_or(0),
            rows: Vec::new(),
        };
        for row in set.by_ref() {
            answer.rows.push(row?);
        }
        answers.push(answer);
    }
    Ok(())
}
