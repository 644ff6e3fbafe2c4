//! A lease that a program holds: the hands of [`crate::renewal`].

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::eventfd::EventFd;

use super::obtain::{CancelHandle, bell, obtain};
use super::{Attempt, Error, refused};
use crate::acquisition::{Wanted, Won};
use crate::clock::{self, Tick};
use crate::inbox::{Inbox, Incoming};
use crate::keeper::{Call, Keeper};
use crate::lock::{Grant, Owner, Token, Ttl};
use crate::renewal::{Loss, Outcome, Plan, Renewal, Step};
use crate::signals;
use crate::store::{End, Store, StoreError};

/// How long a drop waits for the lease to be given back.
const DROP_WAITS: Duration = Duration::from_secs(1);
/// How much longer than the renewing thread a release waits, so that it ends
/// also where that thread does not run.
const SLACK: Duration = Duration::from_secs(1);

/// How a lease stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is held.
    Held,
    /// It is lost, for good: stop.
    Lost(Loss),
    /// It was given back, or is being given back.
    Released,
}

/// How a lease ended that was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// It was held to the end.
    Released,
    /// It was lost before: somebody else may have held the key at the same
    /// time, unless the work had stopped within [`Lease::time_left`].
    Lost(Loss),
}

/// A lock that is held, and renewed in the background.
///
/// Dropping it gives it back, and waits up to 1 s for that; then it is tried
/// on in the background. A panic drops it as well, and counts as a failure for
/// [`Lock::once_per`](super::Lock::once_per), as each drop does.
#[derive(Debug)]
#[must_use = "dropping it frees the lock"]
pub struct Lease(Watch);

/// A view of a [`Lease`], for other threads. It does not keep the lease.
///
/// ```
/// use std::time::Duration;
/// use dblock::client::{Client, Standing};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", folder.path().join("locks.db").display());
/// # let locks = Client::open(&url)?;
/// let lease = locks.lock("k")?.acquire()?.held().expect("it is free");
/// let watch = lease.watch();
/// let watchman = std::thread::spawn(move || match watch.wait(Duration::MAX) {
///     Standing::Lost(loss) => eprintln!("stop at once: {loss}"),
///     _ => {} // given back: all is well
/// });
/// // The work stands here.
/// lease.release()?;
/// watchman.join().expect("it does not panic");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Watch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    grant: Grant,
    call_limit: Duration,
    machine: Mutex<Renewal>,
    /// Notified after each change of the machine.
    changed: Condvar,
    /// Wakes the renewing thread.
    bell: EventFd,
}

impl Lease {
    /// Returns the grant: key, slot, owner id and token.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.0.0.grant
    }

    /// Returns the fencing token: larger than that of every earlier grant of
    /// the key, for ever.
    #[must_use]
    pub fn token(&self) -> Token {
        self.grant().token
    }

    /// Returns the owner id, as `dblock status` shows it.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.grant().owner
    }

    /// Returns the slot, 0 if there is one.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.grant().slot
    }

    /// Tells whether the lease is held, and so whether a step of the work may
    /// begin that ends within the grace. Decided by the host's clock, without
    /// the network; once false it stays false.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// The same as an answer for `?`.
    ///
    /// # Errors
    ///
    /// Returns how the lease was lost.
    pub fn check(&self) -> Result<(), Loss> {
        match self.0.standing() {
            Standing::Lost(loss) => Err(loss),
            Standing::Held | Standing::Released => Ok(()),
        }
    }

    /// Returns how long from now everything must have stopped that must not
    /// overlap with the next holder. Larger than zero for a while also after a
    /// loss by time, and zero after [`Loss::Taken`].
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.0.time_left()
    }

    /// Returns a view for other threads.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.0.clone()
    }

    /// Gives the lock back. Waits for the store's answer within two limits of
    /// a call (each three tenths of the TTL, at most 10 s), after a loss for 1 s.
    ///
    /// # Errors
    ///
    /// [`Error::NotReleased`] if the lease was held to the end, but the store
    /// could not be told; it expires by itself.
    pub fn release(self) -> Result<Ended, Error> {
        let shared = &self.0.0;
        shared.give_back(End::Finished { succeeded: true });
        let limit = clock::now() + shared.call_limit * 2 + SLACK;
        let outcome = shared.wait_until(limit, |machine, _| machine.take_outcome());
        match outcome {
            Some(Outcome::Released) => Ok(Ended::Released),
            Some(Outcome::Lost(loss)) => Ok(Ended::Lost(loss)),
            Some(Outcome::NotReleased(error)) => Err(Error::NotReleased(error)),
            Some(Outcome::Unproven(why)) => Err(Error::Unproven(why)),
            None => Err(Error::NotReleased(StoreError::Unavailable(
                "the renewing thread does not answer".to_owned(),
            ))),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let shared = &self.0.0;
        shared.give_back(End::Finished { succeeded: false });
        let limit = clock::now() + DROP_WAITS;
        shared.wait_until(limit, |machine, _| machine.is_over().then_some(()));
    }
}

impl Watch {
    /// Returns how the lease stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        standing(&mut self.0.lock(), clock::now())
    }

    /// See [`Lease::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.standing() == Standing::Held
    }

    /// See [`Lease::time_left`].
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.0.lock().time_left(clock::now())
    }

    /// Waits until the lease is lost or given back, at most for `limit`
    /// ([`Duration::MAX`] for ever), and returns how it stands then.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Standing {
        let limit = clock::now() + limit;
        let ended = self.0.wait_until(limit, |machine, now| {
            let standing = standing(machine, now);
            (standing != Standing::Held).then_some(standing)
        });
        ended.unwrap_or(Standing::Held)
    }
}

fn standing(machine: &mut Renewal, now: Tick) -> Standing {
    if let Some(loss) = machine.loss(now) {
        return Standing::Lost(loss.clone());
    }
    if machine.is_given_back() {
        Standing::Released
    } else {
        Standing::Held
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Renewal> {
        // The machine is whole after each of its steps.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, end: End) {
        self.lock().release(end, clock::now());
        self.changed.notify_all();
        self.bell.write(1).ok();
    }

    /// Waits until `probe` finds something, at most until `limit`. Looks by
    /// itself when the lease counts as lost, so that nobody depends on the
    /// renewing thread for that.
    fn wait_until<T>(
        &self,
        limit: Tick,
        mut probe: impl FnMut(&mut Renewal, Tick) -> Option<T>,
    ) -> Option<T> {
        let mut machine = self.lock();
        loop {
            let now = clock::now();
            let found = probe(&mut machine, now);
            if found.is_some() || now >= limit {
                return found;
            }
            let mut length = limit - now;
            let lost_at = machine.lost_at();
            if lost_at > now {
                length = length.min(lost_at - now);
            }
            let waited = self.changed.wait_timeout(machine, length);
            machine = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What the renewing thread tells the one that waits for a lease.
type Told = Result<Attempt<Arc<Shared>>, Error>;

/// Takes a lock on a thread that renews it then.
pub(super) fn acquire(
    wanted: Wanted,
    plan: Plan,
    store: Box<dyn Store>,
    cancel: Option<CancelHandle>,
) -> Result<Attempt<Lease>, Error> {
    let (tell, told) = mpsc::channel();
    let work = move || {
        signals::leave_to_other_threads();
        if let Err(refused) = live(wanted, plan, store, cancel.as_ref(), &tell) {
            tell.send(refused).ok();
        }
    };
    // Before the lock is asked for: without a thread nothing is granted.
    thread::Builder::new()
        .name("dblock-lease".into())
        .spawn(work)?;
    match told.recv() {
        Ok(Ok(Attempt::Held(shared))) => Ok(Attempt::Held(Lease(Watch(shared)))),
        Ok(Ok(Attempt::Busy(holders))) => Ok(Attempt::Busy(holders)),
        Ok(Ok(Attempt::Cancelled)) => Ok(Attempt::Cancelled),
        Ok(Err(error)) => Err(error),
        Err(mpsc::RecvError) => Err(Error::Died),
    }
}

/// The life of the renewing thread. Returns what to tell if nothing is granted.
fn live(
    wanted: Wanted,
    plan: Plan,
    store: Box<dyn Store>,
    mut cancel: Option<&CancelHandle>,
    tell: &mpsc::Sender<Told>,
) -> Result<(), Told> {
    let failed = |error: io::Error| Err(Error::from(error));
    let mut inbox = Inbox::without_signals().map_err(failed)?;
    let mut keeper = Keeper::start(store, inbox.postbox()).map_err(failed)?;
    let bell = bell().map_err(failed)?;
    let ttl = wanted.ttl;
    let won = obtain(wanted, &mut inbox, &mut keeper, &mut cancel).map_err(failed)?;
    let Won {
        grant,
        sent,
        former,
        ..
    } = won.map_err(refused)?;
    let worker = Worker {
        shared: Arc::new(Shared {
            grant,
            call_limit: plan.line.call_limit(),
            machine: Mutex::new(Renewal::begin(plan, sent, clock::now())),
            changed: Condvar::new(),
            bell,
        }),
        ttl,
        former,
        inbox,
        keeper,
    };
    // If the system cannot wait any more, the worker's end is a loss.
    worker.work(tell).ok();
    Ok(())
}

/// What renews. Its end, also by a panic, is told as a loss if the lease is
/// not over.
struct Worker {
    shared: Arc<Shared>,
    ttl: Ttl,
    /// Earlier attempts of unknown outcome, which a server may yet carry out.
    former: Vec<Owner>,
    inbox: Inbox,
    keeper: Keeper,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.lock().died();
        self.shared.changed.notify_all();
    }
}

impl Worker {
    fn work(mut self, tell: &mpsc::Sender<Told>) -> io::Result<()> {
        let mut tell = Some(tell);
        loop {
            let (step, until) = {
                let mut machine = self.shared.lock();
                let step = machine.timer(clock::now());
                if machine.is_over() {
                    if let Some(tell) = tell {
                        tell.send(Err(not_given_out(&mut machine))).ok();
                    }
                    return Ok(());
                }
                if !machine.is_being_proven()
                    && let Some(tell) = tell.take()
                {
                    let shared = Arc::clone(&self.shared);
                    tell.send(Ok(Attempt::Held(shared))).ok();
                }
                (step, machine.wake_at())
            };
            self.shared.changed.notify_all();
            self.carry_out(step);
            let bell = self.shared.bell.as_fd();
            for incoming in self.inbox.wait(until, Some(bell))? {
                match incoming {
                    Incoming::Guard => {
                        self.shared.bell.read().ok();
                    }
                    Incoming::Answer(answer) => {
                        let mut machine = self.shared.lock();
                        machine.answer(answer.sent, answer.reply, clock::now());
                    }
                    Incoming::Signal(_) | Incoming::Timer => {}
                }
            }
        }
    }

    fn carry_out(&mut self, step: Option<Step>) {
        let grant = &self.shared.grant;
        match step {
            None => {}
            Some(Step::Renew) => self.keeper.ask(Call::Renew(grant.clone(), self.ttl)),
            Some(Step::Release(end)) => {
                let former = std::mem::take(&mut self.former);
                if !former.is_empty() {
                    self.keeper.ask(Call::Forget(grant.key.clone(), former));
                }
                self.keeper.ask(Call::Release(grant.clone(), end));
            }
        }
    }
}

/// Returns why a lease that was granted is not given out.
fn not_given_out(machine: &mut Renewal) -> Error {
    match machine.take_outcome() {
        Some(Outcome::Unproven(why)) => Error::Unproven(why),
        _ => Error::Died,
    }
}
