//! Making connections: names, several hosts, several addresses, and a limit
//! over all of it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use mysql::{Conn, OptsBuilder};
use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::time::TimeVal;

use super::super::url::Host;
use super::{Server, fault};
use crate::clock;
use crate::store::StoreError;

/// The largest answer that is accepted, in bytes. Saying it saves the driver
/// a round trip to ask the server.
const MAX_PACKET: usize = 16 << 20;

/// Where a connection leads: exactly there, not only to the same name.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    Socket(String),
    Address(SocketAddr),
}

/// A connection that was made.
pub(super) struct Connected {
    pub(super) conn: Conn,
    pub(super) peer: Peer,
    /// Which of the server's hosts it is.
    pub(super) host: usize,
    /// The limit for each exchange on it.
    pub(super) call: Duration,
    /// Whether it has the user-level lock of a key, which the next waiter
    /// sleeps for.
    pub(super) baton: bool,
}

/// Connects to the first host that answers, beginning with number `first`,
/// within `limit` for everything. Each exchange on the connection is limited
/// to `call`, or less.
///
/// A thread of its own does it, because no option bounds a name lookup, and
/// the driver's limits hold for each system call and not for the whole. It may
/// be left behind.
pub(super) fn connect(
    server: &Server,
    first: usize,
    call: Duration,
    limit: Duration,
) -> Result<Connected, StoreError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let target = server.clone();
    thread::Builder::new()
        .name("connector".into())
        .spawn(move || {
            // Nobody may be waiting any more.
            sender.send(attempt(&target, first, call, limit)).ok();
        })
        .map_err(|error| unreachable(server, &error.to_string()))?;
    receiver
        .recv_timeout(limit)
        .unwrap_or_else(|_| Err(unreachable(server, "no answer in time")))
}

fn unreachable(server: &Server, why: &str) -> StoreError {
    StoreError::Unreachable(format!("cannot reach {server}: {why}"))
}

fn attempt(
    server: &Server,
    first: usize,
    call: Duration,
    limit: Duration,
) -> Result<Connected, StoreError> {
    let deadline = clock::now() + limit;
    if let Some(path) = &server.socket {
        let peer = Peer::Socket(path.clone());
        let call = call.min(limit);
        return Ok(Connected {
            conn: to_peer(server, &peer, call, call)?,
            peer,
            host: 0,
            call,
            baton: false,
        });
    }
    let mut last = unreachable(server, "no answer in time");
    let count = server.hosts.len();
    for turn in 0..count {
        let host = (first + turn) % count;
        let place = &server.hosts[host];
        let left = deadline - clock::now();
        let share = left / u32::try_from(count - turn).unwrap_or(1);
        let addresses = match look_up(place, share) {
            Ok(addresses) => addresses,
            Err(error) => {
                let name = &place.name;
                last = StoreError::Unreachable(format!("cannot look up the host {name}: {error}"));
                continue;
            }
        };
        for (number, &address) in addresses.iter().enumerate() {
            // A host that swallows packets must leave time for the others.
            let after = (addresses.len() - number - 1) + (count - turn - 1);
            let share = (deadline - clock::now()) / u32::try_from(after + 1).unwrap_or(1);
            if share.is_zero() {
                return Err(last);
            }
            let peer = Peer::Address(address);
            // The limit stays with the connection, so that it must not be too
            // small; over all there is the deadline.
            let call = call.min(share.max(limit / 4));
            match to_peer(server, &peer, share, call) {
                Ok(conn) => {
                    return Ok(Connected {
                        conn,
                        peer,
                        host,
                        call,
                        baton: false,
                    });
                }
                Err(error) if error.may_pass() => last = error,
                Err(error) => return Err(error),
            }
        }
    }
    Err(last)
}

/// Looks a name up within `limit`, on a thread that may be left behind. The
/// next host must have its time too.
fn look_up(place: &Host, limit: Duration) -> io::Result<Vec<SocketAddr>> {
    let (name, port) = (place.name.clone(), place.port);
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("resolver".into())
        .spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs().map(sorted);
            // Nobody may be waiting any more.
            sender.send(found).ok();
        })?;
    receiver
        .recv_timeout(limit)
        .unwrap_or_else(|_| Err(io::Error::other("no answer in time")))
}

/// IPv4 first: servers listen there more often, and a name like `localhost`
/// has both.
fn sorted(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = addresses.into_iter().collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses
}

/// Connects to exactly this peer.
pub(super) fn to_peer(
    server: &Server,
    peer: &Peer,
    connect: Duration,
    call: Duration,
) -> Result<Conn, StoreError> {
    // A limit of zero would be none (socket(7), SO_RCVTIMEO).
    let [connect, call] = [connect, call].map(|limit| limit.max(Duration::from_millis(1)));
    let opts = OptsBuilder::new()
        .user(server.user.clone().or_else(login_name))
        .pass(server.password.as_ref().map(|p| p.reveal().to_owned()))
        .db_name(Some(server.database.clone()))
        // Without this the driver asks a loopback server for its socket and
        // goes there instead: the URL is taken literally.
        .prefer_socket(false)
        .max_allowed_packet(Some(MAX_PACKET))
        .stmt_cache_size(0)
        .tcp_connect_timeout(Some(connect))
        // While it logs in; afterwards each exchange has its own limit.
        .read_timeout(Some(connect))
        .write_timeout(Some(call))
        .tcp_user_timeout_ms(u32::try_from(call.as_millis()).ok())
        .tcp_keepalive_time_ms(Some(10_000))
        .tcp_keepalive_probe_interval_secs(Some(3))
        .tcp_keepalive_probe_count(Some(3))
        // The driver would send the command line by default.
        .connect_attrs(Some(HashMap::from([("program_name", "dblock")])));
    let opts = match peer {
        Peer::Socket(path) => opts.socket(Some(path.clone())),
        Peer::Address(address) => opts
            .ip_or_hostname(Some(address.ip().to_string()))
            .tcp_port(address.port()),
    };
    let conn = Conn::new(opts).map_err(|error| fault::at_login(&error, server))?;
    set_limit(&conn, call);
    Ok(conn)
}

/// Sets how long an answer may take on a connection. The driver lets it be set
/// only before connecting.
#[expect(unsafe_code, reason = "the driver gives its socket as a number only")]
pub(super) fn set_limit(conn: &Conn, limit: Duration) {
    // SAFETY: the connection owns the socket and outlives the borrow.
    let socket = unsafe { BorrowedFd::borrow_raw(conn.as_raw_fd()) };
    let seconds = libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX);
    let limit = TimeVal::new(seconds, libc::suseconds_t::from(limit.subsec_micros()));
    // On a socket that is connected it does not fail (socket(7)).
    setsockopt(&socket, ReceiveTimeout, &limit).ok();
}

/// The name that MySQL's own clients log in with if none is given.
fn login_name() -> Option<String> {
    nix::unistd::User::from_uid(nix::unistd::geteuid())
        .ok()
        .flatten()
        .map(|user| user.name)
}
