//! The hands of [`crate::acquisition`], for programs and for `run` and
//! `acquire`, which differ in what ends an attempt and who is told of it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::acquisition::{Acquisition, Refusal, Step, Wanted, Won};
use crate::clock::{self, Tick};
use crate::inbox::{Inbox, Incoming};
use crate::keeper::{Call, Keeper};
use crate::signals::Sig;

/// Ends waits for locks from another thread. Its clones are the same handle.
///
/// ```
/// use dblock::client::{Attempt, CancelHandle, Client};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", folder.path().join("locks.db").display());
/// # let locks = Client::open(&url)?;
/// let lease = locks.lock("k")?.acquire()?.held().expect("it is free");
///
/// let enough = CancelHandle::new()?;
/// let lock = locks.lock("k")?.wait_forever().cancel_by(&enough);
/// let waiting = std::thread::spawn(move || lock.acquire());
/// enough.cancel();
/// let answer = waiting.join().expect("it does not panic")?;
/// assert!(matches!(answer, Attempt::Cancelled));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CancelHandle(Arc<EventFd>);

impl CancelHandle {
    /// Returns a new handle.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no descriptor to give.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(bell()?)))
    }

    /// Ends every wait that uses this handle now or later, within a second
    /// or so: a grant that is under way is given back first. One write(2),
    /// so that a signal handler may call it.
    pub fn cancel(&self) {
        // It fails only where it has been called very often already.
        self.0.write(1).ok();
    }

    /// Tells whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..))
    }
}

impl AsFd for CancelHandle {
    /// Readable, and never read, once it was cancelled.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a descriptor that is readable after it was written to.
pub(super) fn bell() -> io::Result<EventFd> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    Ok(EventFd::from_flags(flags)?)
}

/// What is around an attempt to take a lock.
pub trait Surroundings {
    /// Returns a descriptor whose readiness is to be looked at, too; it comes
    /// in as [`Incoming::Guard`].
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes note of what has come in, and returns the signal that ends the
    /// attempt if this is to.
    fn ends(&mut self, incoming: &Incoming) -> Option<Sig>;

    /// Is shown how the attempt stands, and returns when it is to be shown
    /// again at the latest.
    fn show(&mut self, machine: &Acquisition) -> Option<Tick>;
}

impl Surroundings for Option<&CancelHandle> {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.map(AsFd::as_fd)
    }

    fn ends(&mut self, incoming: &Incoming) -> Option<Sig> {
        // Any signal that asks to stop means the same. It is heard once.
        matches!(incoming, Incoming::Guard).then(|| {
            *self = None;
            Sig::Term
        })
    }

    fn show(&mut self, _: &Acquisition) -> Option<Tick> {
        None
    }
}

/// Takes the lock, or returns why not.
///
/// # Errors
///
/// Returns an error if the system cannot wait.
pub fn obtain(
    wanted: Wanted,
    inbox: &mut Inbox,
    keeper: &mut Keeper,
    around: &mut impl Surroundings,
) -> io::Result<Result<Won, Refusal>> {
    let key = wanted.key.clone();
    let (mut machine, mut step) = Acquisition::begin(wanted, fastrand::Rng::new(), clock::now());
    loop {
        match step {
            Step::Ask(call) => keeper.ask(call),
            Step::Cancel => keeper.cancel(),
            Step::Wait => {}
            Step::Won(mut won) => {
                // What is done under the lock does not wait for it.
                if let Some(waiter) = won.waiter.take() {
                    keeper.ask(Call::Forget(key, vec![waiter]));
                }
                return Ok(Ok(won));
            }
            Step::End(refusal) => return Ok(Err(refusal)),
        }
        let show_at = around.show(&machine);
        let until = machine.wake_at().into_iter().chain(show_at).min();
        step = Step::Wait;
        for incoming in inbox.wait(until, around.bell())? {
            let next = match (around.ends(&incoming), incoming) {
                (Some(sig), _) => machine.signal(sig, clock::now()),
                (None, Incoming::Answer(answer)) => {
                    machine.answer(answer.sent, answer.reply, clock::now())
                }
                (None, Incoming::Timer) => machine.timer(clock::now()),
                (None, Incoming::Signal(_) | Incoming::Guard) => Step::Wait,
            };
            // At most one event of a batch has a consequence: there is one
            // call under way, and an end is an end.
            if !matches!(next, Step::Wait) {
                step = next;
            }
            if matches!(step, Step::End(_) | Step::Won(_)) {
                break;
            }
        }
    }
}
