//! A connection that makes itself anew, and the one way to send statements.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder, Row};

use super::{Server, fault, sql};
use crate::clock;
use crate::store::url::Host;
use crate::store::{Canceller, Limits, StoreError};

/// The largest answer that is accepted, in bytes. Saying it saves the driver
/// a round trip to ask the server.
const MAX_PACKET: usize = 16 << 20;

/// A server, and the connection to it while there is one.
pub(super) struct Link {
    server: Server,
    limits: Limits,
    conn: Option<Conn>,
    /// The server's number of the connection, 0 if there is none; shared with
    /// the cancellers.
    number: Arc<AtomicU32>,
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
            conn: None,
            number: Arc::default(),
        }
    }

    pub(super) fn canceller(&self) -> LinkCanceller {
        LinkCanceller {
            server: self.server.clone(),
            limits: self.limits,
            number: Arc::clone(&self.number),
        }
    }

    /// Sends the statements in one packet, connecting first if need be. The
    /// session's settings travel with the first packet of a connection.
    pub(super) fn exchange(&mut self, statements: &[String]) -> Exchange {
        let mut packet = Vec::new();
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => match self.connect() {
                Ok(conn) => {
                    self.number.store(conn.connection_id(), Ordering::Relaxed);
                    packet.push(self.session());
                    conn
                }
                Err(error) => return Exchange::failed(error),
            },
        };
        let settings = packet.len();
        packet.extend_from_slice(statements);
        let mut answers = Vec::new();
        let sent = send(&mut conn, &packet.join(";\n"), &mut answers);
        let error = match sent {
            Ok(()) if answers.len() == packet.len() => {
                self.conn = Some(conn);
                None
            }
            Ok(()) => Some(StoreError::Unavailable(format!(
                "{} answered {} of {} statements",
                self.server,
                answers.len(),
                packet.len()
            ))),
            Err(error) => {
                let (class, in_step) = fault::classify(&error, &self.server);
                if in_step && answers.len() >= settings {
                    self.conn = Some(conn);
                }
                Some(class)
            }
        };
        let answers = answers.split_off(settings.min(answers.len()));
        Exchange { answers, error }
    }

    /// Sends statements that must all be answered.
    pub(super) fn exchange_all(
        &mut self,
        statements: &[String],
    ) -> Result<Vec<Answer>, StoreError> {
        let exchange = self.exchange(statements);
        exchange.error.map_or(Ok(exchange.answers), Err)
    }

    /// The server must give a blocked statement up before this side does, or
    /// it may carry it out when nobody waits for it any more. Its two limits
    /// add up and are whole seconds; one second is the least.
    fn session(&self) -> String {
        let half = self.limits.call.saturating_sub(Duration::from_millis(500)) / 2;
        let idle = self.limits.idle.as_secs().saturating_add(60);
        sql::session(half.as_secs().max(1), idle.clamp(120, 31_536_000))
    }

    fn connect(&self) -> Result<Conn, StoreError> {
        let server = &self.server;
        let limit = self.limits.connect.min(self.limits.call);
        let mut base = OptsBuilder::new()
            .user(server.user.clone().or_else(login_name))
            .pass(server.password.as_ref().map(|p| p.reveal().to_owned()))
            .db_name(Some(server.database.clone()))
            // Without this the driver asks a loopback server for its socket
            // and goes there instead: the URL is taken literally.
            .prefer_socket(false)
            .max_allowed_packet(Some(MAX_PACKET))
            .stmt_cache_size(0)
            .read_timeout(Some(limit))
            .write_timeout(Some(limit))
            .tcp_user_timeout_ms(u32::try_from(limit.as_millis()).ok())
            .tcp_keepalive_time_ms(Some(10_000))
            .tcp_keepalive_probe_interval_secs(Some(3))
            .tcp_keepalive_probe_count(Some(3))
            // The driver would send the command line by default.
            .connect_attrs(Some(HashMap::from([("program_name", "dblock")])));
        if let Some(path) = &server.socket {
            base = base.socket(Some(path.clone()));
            return Conn::new(base).map_err(|error| fault::at_login(&error, server));
        }
        let deadline = clock::now() + self.limits.connect;
        let mut last = None;
        for host in &server.hosts {
            let addresses = match resolve(host, deadline - clock::now()) {
                Ok(addresses) => addresses,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            for address in addresses {
                let left = deadline - clock::now();
                if left.is_zero() {
                    break;
                }
                let opts = base
                    .clone()
                    .ip_or_hostname(Some(address.ip().to_string()))
                    .tcp_port(address.port())
                    .tcp_connect_timeout(Some(left));
                match Conn::new(opts) {
                    Ok(conn) => return Ok(conn),
                    Err(error) => {
                        let class = fault::at_login(&error, server);
                        if !class.may_pass() {
                            return Err(class);
                        }
                        last = Some(class);
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| {
            StoreError::Unreachable(format!("cannot reach {server}: no answer in time"))
        }))
    }
}

/// Ends the connection of a link through a second one.
#[derive(Debug)]
pub(super) struct LinkCanceller {
    server: Server,
    limits: Limits,
    number: Arc<AtomicU32>,
}

impl Canceller for LinkCanceller {
    fn cancel(&self) {
        let number = self.number.load(Ordering::Relaxed);
        if number != 0 {
            let mut second = Link::new(self.server.clone(), self.limits);
            // Whether it worked shows in the answer to the call itself.
            second.exchange_all(&[sql::kill(number)]).ok();
        }
    }
}

/// The name that MySQL's own clients log in with if none is given.
fn login_name() -> Option<String> {
    nix::unistd::User::from_uid(nix::unistd::geteuid())
        .ok()
        .flatten()
        .map(|user| user.name)
}

/// Returns the addresses of a host, IPv4 first: servers listen there more
/// often, and a name like `localhost` has both.
fn resolve(host: &Host, limit: Duration) -> Result<Vec<SocketAddr>, StoreError> {
    if let Ok(ip) = host.name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, host.port)]);
    }
    // No option bounds a name lookup, so it runs aside and may be abandoned.
    let (sender, receiver) = mpsc::sync_channel(1);
    let asked = (host.name.clone(), host.port);
    let helper = thread::Builder::new().name("lookup".into()).spawn(move || {
        let found = asked.to_socket_addrs().map(Vec::from_iter);
        // Nobody may be waiting any more.
        sender.send(found).ok();
    });
    let failed = |why: &str| {
        StoreError::Unreachable(format!("cannot look up the host name {}: {why}", host.name))
    };
    helper.map_err(|error| failed(&error.to_string()))?;
    match receiver.recv_timeout(limit) {
        Ok(Ok(mut addresses)) => {
            addresses.sort_by_key(SocketAddr::is_ipv6);
            Ok(addresses)
        }
        Ok(Err(error)) => Err(failed(&error.to_string())),
        Err(_) => Err(failed("no answer in time")),
    }
}

/// Sends a packet and reads every result set and every row into `answers`.
/// The driver's shorter ways hide the errors of all statements but the first.
fn send(conn: &mut Conn, packet: &str, answers: &mut Vec<Answer>) -> mysql::Result<()> {
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
