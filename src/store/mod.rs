//! The boundary to the databases that hold the locks.
//!
//! Everything above this module is the same for every store; everything that
//! differs between stores stays below it. A new store is one file here, one
//! row in `BACKENDS`, one Cargo feature and one line in the contract suite.

mod url;

pub mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use crate::lock::{Claimant, Grant, Holder, Key, Owner, Request, State, Ttl, Waiter};

pub use url::{Secret, UrlError};

/// The schema of the MySQL tables, as `dblock init` applies it.
pub const MYSQL_SCHEMA: &str = include_str!("../../schema.sql");

/// A database that holds locks.
///
/// The contract, which one suite of tests holds every store to:
///
/// - **The store's clock decides.** Whether a lease has expired is judged
///   inside the store, by one clock that every client shares. Callers get a
///   duration that is left, never a time to compare with a clock of their own.
/// - **Exclusion.** Of any number of clients that ask for the same key at
///   once, at most one is granted it while a lease lasts. Two keys are the
///   same lock only if they are the same bytes.
/// - **Tokens rise.** Each grant of a key carries a token larger than every
///   earlier one, also after release, takeover and restart.
/// - **Owner check.** [`renew`](Store::renew) and [`release`](Store::release)
///   change nothing unless the row is the grant's own.
/// - **Answers are not errors.** Busy, lost and not held are answers. An error
///   tells by its variant what is known of the outcome: after
///   [`StoreError::Unavailable`] the call may have been carried out or not,
///   after every other error it was not.
/// - **No call tries again by itself.** Each ends within the limits given to
///   [`Endpoint::open`], also if the database makes it wait for something.
///   Patience lives above.
/// - **Connections are the store's affair.** It connects when a call needs it
///   and drops a connection that may be out of step; a caller that tries again
///   after an error gets a fresh one.
pub trait Store: Debug + Send {
    /// Tries to take a slot of the key, removing first what the request's
    /// former attempts may have left. Refuses a table that cannot exclude.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError>;

    /// Extends a lease to `ttl` from the store's present moment on.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn renew(&mut self, grant: &Grant, ttl: Ttl, revive: Revive) -> Result<Renewed, StoreError>;

    /// Gives a lease back.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn release(&mut self, grant: &Grant, end: End) -> Result<Released, StoreError>;

    /// Shows that somebody waits for a key, and returns when there may be
    /// something to do, or `limit` has passed, or earlier. To be repeated: who
    /// does not come again is forgotten after [`WAITER_FORGOTTEN`].
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn wait(&mut self, waiter: &Waiter, limit: Duration) -> Result<Waited, StoreError>;

    /// Returns who waits for a key, or for any, by key and order of arrival.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn waiters(&mut self, key: Option<&Key>) -> Result<Vec<Waiter>, StoreError>;

    /// Refuses new grants of a key, or changes how long, or for what reason
    /// (the claimant's note), they are refused.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn block(
        &mut self,
        key: &Key,
        length: Option<Duration>,
        claimant: &Claimant,
    ) -> Result<(), StoreError>;

    /// Allows grants again. Tells whether the key was blocked.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn unblock(&mut self, key: &Key) -> Result<bool, StoreError>;

    /// Removes the rows that attempts of unknown outcome, each with its own
    /// owner id, may have left under a key, and waiters with these ids.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn forget(&mut self, key: &Key, owners: &[Owner]) -> Result<(), StoreError>;

    /// Returns the rows of one key, or of all keys, by key and slot. Expired
    /// rows that nobody has taken over are among them.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn holders(&mut self, key: Option<&Key>) -> Result<Vec<Holder>, StoreError>;

    /// Creates or upgrades the tables. Does nothing to tables that are right,
    /// and may be called by many at once.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn init(&mut self) -> Result<Initialized, StoreError>;

    /// Returns the means to make a server drop the call that it is carrying
    /// out, from another thread. A store without a server needs none: its call
    /// ends with the process.
    fn canceller(&self) -> Option<Box<dyn Canceller>> {
        None
    }
}

/// Makes a server drop a call. A client that just goes away leaves a blocked
/// statement behind, which may be carried out when nobody waits for it.
pub trait Canceller: Debug + Send {
    /// Tries once, within the store's limit for a connection. Does nothing if
    /// there is no connection; what comes of the call is its own answer.
    fn cancel(&self);
}

/// After this time a waiter that has not shown itself is no longer counted.
/// Long enough for those who wait without a connection.
pub const WAITER_FORGOTTEN: Duration = Duration::from_secs(90);

/// The answer to an attempt to acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The lease is granted; its TTL counts from no earlier than the moment
    /// when the request was sent.
    Granted(Grant),
    /// It was granted, and must be given back unused: what stands beside it
    /// under the key does not allow it (a block, a different number of slots,
    /// a run that has succeeded). The rows are those of the key.
    Contested(Grant, Vec<Holder>),
    /// Somebody holds the slot. The rows are what the store saw right after;
    /// the list is empty, or its rows expired, if a holder went in between.
    Busy(Vec<Holder>),
}

impl Acquired {
    /// Returns the answer for a grant, given the rows that stand under its key
    /// right after.
    fn granted(grant: Grant, request: &Request, rows: Vec<Holder>) -> Self {
        let contested = rows.iter().any(|row| {
            row.grant.owner != grant.owner
                && row.state.excludes(&request.terms)
                && (row.state != State::Held && row.state != State::Closing
                    || row.slots != request.terms.slots)
        });
        if contested {
            Self::Contested(grant, rows)
        } else {
            Self::Granted(grant)
        }
    }
}

/// How a lease is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The job is gone; whether it succeeded. The row stays as long as its
    /// terms keep it shut.
    Finished {
        /// What [`Terms::once_per`](crate::lock::Terms::once_per) counts.
        succeeded: bool,
    },
    /// Nothing shall be left of it.
    Dropped,
}

/// The answer to [`Store::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// What to do.
    pub turn: Turn,
    /// Where the waiter stands, if the store has looked.
    pub place: Option<Place>,
}

/// What a waiter is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something may have changed: look now, and wait again.
    Look,
    /// Look now and then: it is the first of those who wait here, and the
    /// holder may go without a sign.
    First,
    /// Come back later, and the later the more are ahead: too many wait to
    /// keep a connection for each.
    Far,
    /// There is no queue here, or not for so short a time: look now and then.
    NoQueue,
}

/// A place among those who wait for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many came before.
    pub ahead: u64,
    /// How many wait in all.
    pub waiting: u64,
}

/// Whether a renewal may extend a lease that has expired but that nobody has
/// taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revive {
    /// It may: `dblock run` stops its job by its own deadline, so its row is
    /// still its own as long as it is there.
    Allowed,
    /// It may not: a script that renews by hand must learn that it was late.
    Refused,
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease is extended.
    Extended,
    /// The lease is not this grant's (any more). The rows are those of the
    /// key now.
    Lost(Vec<Holder>),
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The row was this grant's and is gone.
    Released,
    /// There was no row of this grant.
    NotHeld,
}

/// What [`Store::init`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initialized {
    /// Tables were created.
    Created,
    /// Everything was as it should be.
    Unchanged,
}

/// Why a call has no answer. Each text names the thing and never a secret.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The store says that nothing was done and that trying again soon makes
    /// sense: a deadlock, a lock wait that took too long, too many clients.
    #[error("{0}")]
    Transient(String),
    /// There was no connection, and none could be made. Nothing was done.
    #[error("{0}")]
    Unreachable(String),
    /// The connection was lost, or the answer makes no sense: **nobody knows
    /// whether the call was carried out**.
    #[error("{0}")]
    Unavailable(String),
    /// The server may not be written to. Nothing was done.
    #[error("{0}")]
    ReadOnly(String),
    /// Login or rights are refused, or the connection cannot be made in the
    /// way that is asked for. Nothing was done.
    #[error("{0}")]
    Denied(String),
    /// The tables are missing, or are not what this version needs. Nothing
    /// was done.
    #[error("{0}")]
    Schema(String),
}

impl StoreError {
    /// Tells whether the call may have been carried out all the same.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Tells whether the same call may succeed later without anybody changing
    /// a setting.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Transient(_) | Self::Unreachable(_) | Self::Unavailable(_)
        )
    }
}

/// How long a store may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a connection with all its phases, while no lease is held.
    pub connect: Duration,
    /// For each exchange on a connection, and for a new connection while a
    /// lease is held.
    pub call: Duration,
    /// Longest time that a connection is expected to be idle.
    pub idle: Duration,
    /// Whether waiters may sleep in a queue of the server's, and holders wake
    /// them.
    pub queue: bool,
}

impl Limits {
    /// Returns the limits of a command that makes a few calls and ends.
    #[must_use]
    pub fn for_command(connect: Duration) -> Self {
        Self {
            connect,
            call: connect,
            idle: Duration::ZERO,
            queue: true,
        }
    }
}

/// Where a store is: a URL that was understood, with its secret.
pub trait Endpoint: Debug + Send + Sync {
    /// Returns a store that connects at its first call.
    fn open(&self, limits: Limits) -> Box<dyn Store>;

    /// Returns the name of the table of locks, quoted for [`fence`], if a job
    /// can reach it in a transaction of its own.
    fn table(&self) -> Option<String> {
        None
    }
}

/// Returns the statement that fails unless the lease is held, for a job's own
/// transaction. `table` is what [`Endpoint::table`] returned.
#[must_use]
pub fn fence(table: &str, grant: &Grant) -> Option<String> {
    #[cfg(feature = "mysql")]
    return Some(mysql::fence(table, grant));
    #[cfg(not(feature = "mysql"))]
    {
        let _ = (table, grant);
        None
    }
}

/// Understands the part of a URL behind the scheme's colon.
type ParseUrl = fn(rest: &str, password: Option<Secret>) -> Result<Box<dyn Endpoint>, UrlError>;

/// A scheme of URLs and the store behind it.
struct Backend {
    scheme: &'static str,
    parse: ParseUrl,
}

const BACKENDS: &[Backend] = &[
    Backend {
        scheme: "mysql",
        #[cfg(feature = "mysql")]
        parse: mysql::endpoint,
        #[cfg(not(feature = "mysql"))]
        parse: |_, _| Err(UrlError::left_out("mysql")),
    },
    Backend {
        scheme: "sqlite",
        #[cfg(feature = "sqlite")]
        parse: sqlite::endpoint,
        #[cfg(not(feature = "sqlite"))]
        parse: |_, _| Err(UrlError::left_out("sqlite")),
    },
];

/// Returns the endpoint that `url` names. `password` is used if the URL has
/// none.
///
/// # Errors
///
/// Returns an error, without any secret in it, if the scheme is unknown, was
/// left out of this build, or the rest is not what the scheme asks for.
pub fn endpoint(url: &str, password: Option<Secret>) -> Result<Box<dyn Endpoint>, UrlError> {
    let (scheme, rest) = url.split_once(':').ok_or_else(UrlError::no_scheme)?;
    let backend = BACKENDS
        .iter()
        .find(|backend| backend.scheme == scheme)
        .ok_or_else(|| UrlError::unknown_scheme(BACKENDS.iter().map(|b| b.scheme)))?;
    (backend.parse)(rest, password)
}

/// Returns the endpoint of the embedded store in the file `path`.
///
/// # Errors
///
/// Returns an error if the embedded store was left out of this build.
pub fn embedded(path: &Path) -> Result<Box<dyn Endpoint>, UrlError> {
    #[cfg(feature = "sqlite")]
    return Ok(sqlite::file(path.to_owned()));
    #[cfg(not(feature = "sqlite"))]
    {
        let _ = path;
        Err(UrlError::left_out("sqlite"))
    }
}
