//! Locks for Rust programs: the verbs of `dblock` without a job to start.
//!
//! Everything here blocks, and nothing has effects on the process around it:
//! no signal handler is installed, no process started, nothing printed. A
//! [`Lease`] has two threads while it lives, on which all signals are blocked.
//!
//! # A lease that is renewed in the background
//!
//! ```
//! use std::time::Duration;
//! use dblock::client::{Attempt, Client};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", folder.path().join("locks.db").display());
//! let locks = Client::open(&url)?; // sqlite:PATH, or mysql://USER@HOST/DATABASE
//! let lock = locks.lock("nightly-report")?.ttl(Duration::from_secs(30));
//!
//! let Attempt::Held(lease) = lock.acquire()? else {
//!     return Ok(()); // somebody else does it
//! };
//! for chapter in 1..=3 {
//!     lease.check()?; // ends here if the lease is lost
//!     println!("chapter {chapter} under token {}", lease.token());
//! }
//!
//! // Meanwhile nobody else is let in.
//! let second = Client::open(&url)?;
//! match second.lock("nightly-report")?.acquire()? {
//!     Attempt::Busy(holders) => assert_eq!(holders[0].grant.token, lease.token()),
//!     other => panic!("two at once: {other:?}"),
//! }
//!
//! // Each grant has a larger token than all before it.
//! let first = lease.token();
//! lease.release()?;
//! let lease = second.lock("nightly-report")?.acquire()?.held().expect("it is free");
//! assert!(lease.token() > first);
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised, and what the program has to do
//!
//! `dblock run` kills its job before anybody else can be granted the key.
//! Nobody kills a part of a program, so here **the program must stop by itself
//! when the lease is lost**. It gets time for that:
//!
//! ```text
//! S          S + ttl/3             S + ttl - margin - grace     S + ttl - margin     S + ttl
//! granted,   renewed, then tried   lost: Lease::is_held is      Lease::time_left     others may be
//! renewed    again until then      false from here on           is zero from here    granted the key
//! ```
//!
//! S is the moment when the last successful request was *sent*, on the clock of
//! the host that runs on during suspend. The margin is a twentieth of the TTL,
//! at least 100 ms; the grace is a quarter of the TTL, at most 10 s, or what
//! [`Lock::stop_within`] says: with a TTL of 30 s the loss is told after 21 s
//! without a renewal, and the work must have stopped after 28.5 s. No answer
//! of the network is waited for in this. If the store itself says that the
//! lease was taken away ([`Loss::Taken`]), no time is left.
//!
//! - Check [`Lease::is_held`] or [`Lease::check`] before each step of the work,
//!   and let no step take longer than the grace. Where that is impossible, let
//!   a thread sit in [`Watch::wait`] and stop the work from there.
//! - A check is true when it is made. A thread may be held up right behind it,
//!   or the machine put to sleep. Where a write must be safe even then, send
//!   [`Lease::token`] along and let whoever receives it refuse a smaller token
//!   than the largest that it has seen.
//! - Keep the lease until the work has stopped, also after a loss. The row is
//!   kept for as long as that is possible, and given back when the lease is
//!   released or dropped.
//! - A lease lives as long as its process, not as long as its work proceeds:
//!   work that hangs keeps the key. A process that ends without dropping the
//!   lease (`std::process::exit`, a signal) leaves the row until it expires.
//! - A lease does not cross fork(2): only the process that acquired it has the
//!   threads.
//!
//! What the promise rests on is the same as for `dblock run`: the store keeps
//! committed rows, and the clocks of hosts run at rates within 1 % of each
//! other, whatever time of day they show.
//!
//! ```
//! # use std::time::Duration;
//! # use dblock::client::{Client, Loss, Standing};
//! # use dblock::store::End;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", folder.path().join("locks.db").display());
//! let locks = Client::open(&url)?;
//! let lock = locks.lock("k")?.ttl(Duration::from_secs(1));
//! let lease = lock.acquire()?.held().expect("it is free");
//! assert_eq!(lease.watch().standing(), Standing::Held);
//!
//! // An operator takes it away, as `dblock force-release --now` does.
//! locks.store().release(lease.grant(), End::Dropped)?;
//!
//! // The next renewal hears of it, after a third of the TTL at the latest.
//! match lease.watch().wait(Duration::from_secs(10)) {
//!     Standing::Lost(Loss::Taken(_)) => {}
//!     other => panic!("not told: {other:?}"),
//! }
//! assert!(!lease.is_held() && lease.time_left().is_zero());
//! # Ok(())
//! # }
//! ```
//!
//! # A lease held by hand
//!
//! [`Lock::acquire_by_hand`] takes a lease that nobody renews, for work that
//! knows how long it takes or hands the lease on to another process. It ends
//! with its TTL, and nothing brings it back.
//!
//! ```
//! # use std::time::Duration;
//! use dblock::store::{Released, Renewed};
//! # use dblock::client::Client;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", folder.path().join("locks.db").display());
//! let second = Duration::from_secs(1);
//! let locks = Client::open(&url)?;
//! let mut lease = locks.lock("migrate")?.ttl(second).acquire_by_hand()?.held().expect("it is free");
//! assert_eq!(lease.renew(second)?, Renewed::Extended);
//!
//! std::thread::sleep(second * 11 / 10);
//! assert!(lease.time_left().is_zero());
//! assert!(matches!(lease.renew(second)?, Renewed::Lost(_)), "too late");
//! assert_eq!(lease.release()?, Released::NotHeld);
//! # Ok(())
//! # }
//! ```
//!
//! # Words and ranges
//!
//! Keys have 1 to 255 bytes of UTF-8, no control characters and no blank at
//! either end; the same bytes are the same lock, for programs and for the
//! command. A TTL is 1 s to 30 d, in whole milliseconds. Busy, lost and
//! cancelled are answers and not errors; an [`enum@Error`] says what is wrong with
//! the request, or why the store has no answer.

mod lease;
mod obtain;

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::acquisition::{Patience, Refusal, Wanted};
use crate::by_hand;
use crate::cli::StoreArgs;
use crate::clock::{self, Tick};
use crate::config::{self, ConfigError, Settings};
use crate::inbox::Inbox;
use crate::keeper::{Call, Keeper};
use crate::lease::{GraceError, Timeline};
use crate::lock::{Grant, Holder, Key, KeyError, Kind, SLOTS_MAX, Terms, Ttl, TtlError, slot_of};
use crate::renewal::Plan;
use crate::store::{
    self, End, Endpoint, Limits, Released, Renewed, Revive, Secret, Store, StoreError, UrlError,
};

pub use crate::renewal::Loss;
pub use lease::{Ended, Lease, Standing, Watch};
pub use obtain::{CancelHandle, Surroundings, obtain};

/// Limit for a connection while no lease is held, unless set otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Length of a lease, unless set otherwise.
const TTL: Duration = Duration::from_secs(30);

/// Why there is no answer. No text holds a secret.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL names no store.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The configuration names no store, or makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The text is not a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The duration is not a TTL.
    #[error(transparent)]
    Ttl(#[from] TtlError),
    /// The program wants more time to stop than the TTL has; holds the most.
    #[error("the time to stop within is too long for this TTL: it may be at most {}",
        humantime::format_duration(*.0))]
    StopWithin(Duration),
    /// The number of slots is out of range.
    #[error("a key has 1 to {SLOTS_MAX} slots")]
    Slots,
    /// Others use the key with another number of slots: all must say the same.
    #[error("the key is used with another number of slots than was asked for")]
    SlotsDiffer(Vec<Holder>),
    /// The store has no answer; see [`StoreError`] for what may have been done.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The lease was granted so late that too little of its TTL was left, and
    /// was given back unused.
    #[error("the lease could not be proven: {0}")]
    Unproven(String),
    /// The lease was held to the end, but could not be given back: others wait
    /// until it expires.
    #[error("the lease could not be given back and expires by itself: {0}")]
    NotReleased(StoreError),
    /// The system has no thread or descriptor to give.
    #[error("the system refuses a thread or a descriptor: {0}")]
    System(#[from] io::Error),
    /// A thread has died: a fault of dblock itself.
    #[error("a thread of dblock has died")]
    Died,
}

impl From<GraceError> for Error {
    fn from(error: GraceError) -> Self {
        Self::StopWithin(error.most())
    }
}

/// The answer to an attempt to take a lock.
#[derive(Debug)]
#[must_use]
pub enum Attempt<T> {
    /// The lock is held.
    Held(T),
    /// Others hold it, or it is kept shut, and the time for waiting is over.
    /// These are its rows at the last look.
    Busy(Vec<Holder>),
    /// [`CancelHandle::cancel`] came first.
    Cancelled,
}

impl<T> Attempt<T> {
    /// Returns what is held, if it is.
    #[must_use]
    pub fn held(self) -> Option<T> {
        match self {
            Self::Held(lease) => Some(lease),
            Self::Busy(_) | Self::Cancelled => None,
        }
    }
}

/// A store whose locks are used. Cheap to clone; each lease and each call has
/// a connection of its own, which is made when it is needed.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Arc<dyn Endpoint>,
    connect_timeout: Duration,
}

impl Client {
    /// Returns the client of the store with this URL: `sqlite:PATH` for the
    /// processes of one host, `mysql://USER@HOST[:PORT]/DATABASE` for many.
    /// Connects to nothing yet.
    ///
    /// The tables of a server must be there (`dblock init`, or
    /// [`Store::init`]); the embedded store makes its file by itself.
    ///
    /// # Errors
    ///
    /// [`Error::Url`] if the URL names no store.
    pub fn open(url: &str) -> Result<Self, Error> {
        Ok(store::endpoint(url, None)?.into())
    }

    /// Returns the same with a password that is used if the URL has none.
    ///
    /// # Errors
    ///
    /// [`Error::Url`] if the URL names no store.
    pub fn open_with_password(url: &str, password: impl Into<String>) -> Result<Self, Error> {
        let password = Secret::new(password.into());
        Ok(store::endpoint(url, Some(password))?.into())
    }

    /// Returns the client of the store that the `dblock` command would use
    /// without options: by `DBLOCK_URL` or the configuration file, with the
    /// password from there. Reads the environment.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if nothing is configured or it makes no sense.
    pub fn configured() -> Result<Self, Error> {
        Ok(config::settings(&StoreArgs::default())?.into())
    }

    /// Sets the time for a connection with all its phases, and for the store
    /// to answer at all, while no lease is held. 5 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Returns the lock with this key, to be configured and acquired.
    ///
    /// # Errors
    ///
    /// [`Error::Key`] if the text is not a key.
    pub fn lock(&self, key: impl Into<String>) -> Result<Lock, Error> {
        Ok(Lock {
            client: self.clone(),
            key: Key::new(key)?,
            ttl: TTL,
            stop_within: None,
            patience: Patience::None,
            terms: Terms::default(),
            slot_by: None,
            note: None,
            cancel: None,
        })
    }

    /// Extends a lease that is held by hand to `ttl` (1 s to 30 d) from now
    /// on. A lease that has expired is not brought back: [`Renewed::Lost`],
    /// with the key's present rows.
    ///
    /// # Errors
    ///
    /// [`Error::Ttl`], or [`Error::Store`] if there was no answer in time: the
    /// lease may have been extended or not.
    pub fn renew(&self, grant: &Grant, ttl: Duration) -> Result<Renewed, Error> {
        self.renew_sent(grant, Ttl::new(ttl)?)
            .map(|(_, answer)| answer)
    }

    /// Gives back a lease that is held by hand. [`Released::NotHeld`] if it
    /// had expired or was taken away: its holder was not alone to the end.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if there was no answer in time: the lease may have
    /// been given back or not.
    pub fn release(&self, grant: &Grant) -> Result<Released, Error> {
        let mut store = self.store();
        Ok(by_hand::release(&mut *store, grant, self.connect_timeout)?)
    }

    /// Returns a store that connects at its first call, for everything else
    /// that the command does: [`Store::init`], [`Store::holders`],
    /// [`Store::waiters`], [`Store::block`] and [`Store::unblock`].
    #[must_use]
    pub fn store(&self) -> Box<dyn Store> {
        self.endpoint
            .open(Limits::for_command(self.connect_timeout))
    }

    /// Returns the answer, and when the request was sent.
    fn renew_sent(&self, grant: &Grant, ttl: Ttl) -> Result<(Tick, Renewed), Error> {
        let mut store = self.store();
        Ok(by_hand::patiently(self.connect_timeout, |_| {
            let sent = clock::now();
            let answer = store.renew(grant, ttl, Revive::Refused)?;
            Ok((sent, answer))
        })?)
    }
}

impl From<Box<dyn Endpoint>> for Client {
    fn from(endpoint: Box<dyn Endpoint>) -> Self {
        Self {
            endpoint: endpoint.into(),
            connect_timeout: CONNECT_TIMEOUT,
        }
    }
}

impl From<Settings> for Client {
    fn from(settings: Settings) -> Self {
        Self {
            endpoint: settings.endpoint.into(),
            connect_timeout: settings.connect_timeout,
        }
    }
}

/// A lock and how it is to be taken. May be acquired any number of times.
#[derive(Clone, Debug)]
#[must_use]
pub struct Lock {
    client: Client,
    key: Key,
    ttl: Duration,
    stop_within: Option<Duration>,
    patience: Patience,
    terms: Terms,
    slot_by: Option<String>,
    note: Option<String>,
    cancel: Option<CancelHandle>,
}

impl Lock {
    /// Sets the length of the lease: 1 s to 30 d, cut to whole milliseconds.
    /// 30 s by default. A short one frees the key sooner after a crash, a long
    /// one rides out longer outages of the network.
    pub fn ttl(mut self, length: Duration) -> Self {
        self.ttl = length;
        self
    }

    /// Sets the time that the program needs to stop when it is told of a loss:
    /// it is told so much earlier. At most half of the TTL without the safety
    /// margin; by default a quarter of the TTL, at most 10 s.
    pub fn stop_within(mut self, length: Duration) -> Self {
        self.stop_within = Some(length);
        self
    }

    /// Waits up to this time for a busy key, instead of not at all. A store
    /// that cannot be reached is tried again as long, once it has answered.
    pub fn wait_for(mut self, length: Duration) -> Self {
        self.patience = Patience::For(length);
        self
    }

    /// Waits until the key is free.
    pub fn wait_forever(mut self) -> Self {
        self.patience = Patience::Forever;
        self
    }

    /// Lets this many hold the key at once, 1 (the default) to 1000. All who
    /// use the key must say the same.
    pub fn slots(mut self, number: u16) -> Self {
        self.terms.slots = number;
        self
    }

    /// With [`Lock::slots`], takes the one slot that this value always has,
    /// instead of any that is free.
    pub fn slot_by(mut self, value: impl Into<String>) -> Self {
        self.slot_by = Some(value.into());
        self
    }

    /// Keeps the key closed for at least this time after the grant, also if
    /// the lease is given back earlier.
    pub fn at_least(mut self, length: Duration) -> Self {
        self.terms.at_least = length;
        self
    }

    /// Does not take the key if somebody was granted it less than this time
    /// ago, asked for the same, and ended well: by a release and not by a drop.
    pub fn once_per(mut self, length: Duration) -> Self {
        self.terms.once_per = Some(length);
        self
    }

    /// If the lease is lost or expires, nobody is granted the key for this
    /// time in addition.
    pub fn lock_delay(mut self, length: Duration) -> Self {
        self.terms.lock_delay = length;
        self
    }

    /// Sets a text that `dblock status` shows, cut to 255 characters.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.note = Some(text.into());
        self
    }

    /// Lets another thread end the wait.
    pub fn cancel_by(mut self, handle: &CancelHandle) -> Self {
        self.cancel = Some(handle.clone());
        self
    }

    /// Takes the lock and renews it in the background, until the lease is
    /// released or dropped.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`]. After an error nothing is held, and what an attempt of
    /// unknown outcome may have left has been removed, if the store could be
    /// reached, or else expires by itself.
    pub fn acquire(&self) -> Result<Attempt<Lease>, Error> {
        let plan = Plan {
            line: Timeline::new(Ttl::new(self.ttl)?, self.stop_within)?,
            delays_after_loss: !self.terms.lock_delay.is_zero(),
        };
        let wanted = self.wanted(Kind::Run)?;
        let limits = Limits {
            connect: self.client.connect_timeout,
            call: plan.line.call_limit(),
            idle: wanted.ttl.get(),
            queue: true,
        };
        let store = self.client.endpoint.open(limits);
        lease::acquire(wanted, plan, store, self.cancel.clone())
    }

    /// Takes the lock for the length of the TTL. Nobody renews it.
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire`].
    pub fn acquire_by_hand(&self) -> Result<Attempt<ByHand>, Error> {
        let wanted = self.wanted(Kind::Acquire)?;
        let (key, ttl) = (wanted.key.clone(), wanted.ttl);
        let line = Timeline::new(ttl, None)?;
        let store = self.client.endpoint.open(Limits {
            idle: ttl.get(),
            ..Limits::for_command(self.client.connect_timeout)
        });
        let mut inbox = Inbox::without_signals()?;
        let mut keeper = Keeper::start(store, inbox.postbox())?;
        let won = match obtain(wanted, &mut inbox, &mut keeper, &mut self.cancel.as_ref())? {
            Ok(won) => won,
            Err(refusal) => return refused(refusal),
        };
        if !won.former.is_empty() {
            keeper.ask(Call::Forget(key, won.former));
        }
        // Whoever gets it must have time to use it.
        if !line.may_start(won.sent, clock::now()) {
            let mut store = self.client.store();
            by_hand::give_back(
                &mut *store,
                &won.grant,
                End::Dropped,
                self.client.connect_timeout,
            )
            .ok();
            let why = "the database took too long to answer for this TTL";
            return Err(Error::Unproven(why.to_owned()));
        }
        Ok(Attempt::Held(ByHand {
            client: self.client.clone(),
            grant: won.grant,
            over_at: line.kill_at(won.sent),
        }))
    }

    fn wanted(&self, kind: Kind) -> Result<Wanted, Error> {
        let slots = self.terms.slots;
        if !(1..=SLOTS_MAX).contains(&slots) {
            return Err(Error::Slots);
        }
        Ok(Wanted {
            key: self.key.clone(),
            ttl: Ttl::new(self.ttl)?,
            terms: self.terms,
            slot: self.slot_by.as_ref().map(|value| slot_of(value, slots)),
            kind,
            claimant: config::claimant(&[program()], self.note.clone()),
            patience: self.patience,
            contact: self.client.connect_timeout,
        })
    }
}

/// Returns the name of this program, for the people who look at the table.
/// Its arguments may hold secrets.
fn program() -> OsString {
    let path = std::env::current_exe().ok();
    let name = path.as_ref().and_then(|path| path.file_name());
    name.map(ToOwned::to_owned).unwrap_or_default()
}

/// Returns the answer for a request that was not granted.
fn refused<T>(refusal: Refusal) -> Result<Attempt<T>, Error> {
    match refusal {
        Refusal::Busy(holders) => Ok(Attempt::Busy(holders)),
        Refusal::Interrupted(_) => Ok(Attempt::Cancelled),
        Refusal::SlotsDiffer(holders) => Err(Error::SlotsDiffer(holders)),
        Refusal::Failed(error) => Err(error.into()),
        Refusal::KeeperDied => Err(Error::Died),
    }
}

/// A lease that nobody renews. Dropping it gives nothing back: it ends with
/// its TTL, and may have been handed on.
#[derive(Debug)]
#[must_use = "it is held until its TTL ends"]
pub struct ByHand {
    client: Client,
    grant: Grant,
    /// When whatever must not overlap has to be over.
    over_at: Tick,
}

impl ByHand {
    /// Returns all that [`Client::renew`] and [`Client::release`] need, here or
    /// in another process.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns how long the work may go on: until a margin of a twentieth of
    /// the TTL, at least 100 ms, before the lease ends, counted from the moment
    /// when it was asked for.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.over_at - clock::now()
    }

    /// Extends the lease; see [`Client::renew`].
    ///
    /// # Errors
    ///
    /// As for [`Client::renew`].
    pub fn renew(&mut self, ttl: Duration) -> Result<Renewed, Error> {
        let ttl = Ttl::new(ttl)?;
        let (sent, answer) = self.client.renew_sent(&self.grant, ttl)?;
        self.over_at = match answer {
            Renewed::Extended => Timeline::new(ttl, None)?.kill_at(sent),
            Renewed::Lost(_) => Tick::default(),
        };
        Ok(answer)
    }

    /// Gives the lease back; see [`Client::release`].
    ///
    /// # Errors
    ///
    /// As for [`Client::release`].
    pub fn release(self) -> Result<Released, Error> {
        self.client.release(&self.grant)
    }
}
