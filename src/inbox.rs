//! The one place where a running dblock waits: for signals, for answers of
//! the keeper, and for a moment of the boot-time clock.
//!
//! The moment is kept by a timer of the kernel on `CLOCK_BOOTTIME`
//! (timerfd_create(2)), because the time-outs of poll(2) and of channels stand
//! still during suspend, and a deadline must be looked at as soon as the
//! machine wakes up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::clock::Tick;
use crate::keeper::Answer;
use crate::signals::{Relay, Sig};

/// The latest moment that a timer is set to: further away than any machine
/// runs, and not too far for the kernel's counter.
const FAR_AWAY: Duration = Duration::from_secs(1 << 32);

/// Something that happened.
#[derive(Debug)]
pub enum Incoming {
    /// A signal reached this process.
    Signal(Sig),
    /// The guard, or whoever else is listened to, has something to report.
    Guard,
    /// The keeper answered.
    Answer(Answer),
    /// The moment has come.
    Timer,
}

/// Collects what happens.
#[derive(Debug)]
pub struct Inbox {
    relay: Option<Relay>,
    answers: mpsc::Receiver<Answer>,
    sender: mpsc::Sender<Answer>,
    bell: Arc<EventFd>,
    timer: TimerFd,
}

/// Where the keeper posts its answers.
#[derive(Clone, Debug)]
pub struct Postbox {
    sender: mpsc::Sender<Answer>,
    bell: Arc<EventFd>,
}

impl Postbox {
    /// Posts an answer. Nothing happens if nobody reads any more.
    pub fn send(&self, answer: Answer) {
        self.sender.send(answer).ok();
        self.bell.write(1).ok();
    }
}

impl Inbox {
    /// Returns an inbox for this process's signals and a keeper's answers.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no descriptors to give.
    pub fn new(relay: Relay) -> io::Result<Self> {
        let inbox = Self::without_signals()?;
        Ok(Self {
            relay: Some(relay),
            ..inbox
        })
    }

    /// Returns an inbox for a keeper's answers alone: the signals of a program
    /// that uses the library are its own affair.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no descriptors to give.
    pub fn without_signals() -> io::Result<Self> {
        let (sender, answers) = mpsc::channel();
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let timer = TimerFd::new(
            ClockId::CLOCK_BOOTTIME,
            TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
        )?;
        Ok(Self {
            relay: None,
            answers,
            sender,
            bell: Arc::new(bell),
            timer,
        })
    }

    /// Returns where answers are to be posted.
    #[must_use]
    pub fn postbox(&self) -> Postbox {
        Postbox {
            sender: self.sender.clone(),
            bell: Arc::clone(&self.bell),
        }
    }

    /// Waits until something happens, at the latest until `moment`, and
    /// returns all that has happened, in the order signals, guard, answers,
    /// timer. `guard` is what the guard tells its reports through, or another
    /// descriptor that is readable when there is something to look at.
    ///
    /// # Errors
    ///
    /// Returns an error if the system cannot wait.
    pub fn wait(
        &mut self,
        moment: Option<Tick>,
        guard: Option<BorrowedFd<'_>>,
    ) -> io::Result<Vec<Incoming>> {
        match moment {
            // A timer set to zero would be disarmed (timerfd_settime(2)).
            Some(tick) => self.timer.set(
                Expiration::OneShot(TimeSpec::from_duration(
                    tick.since_boot().clamp(Duration::from_nanos(1), FAR_AWAY),
                )),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )?,
            None => self.timer.unset()?,
        }
        loop {
            let mut fds = vec![
                PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
            ];
            let signals = self.relay.as_ref().map(AsFd::as_fd);
            fds.extend(signals.map(|signals| PollFd::new(signals, PollFlags::POLLIN)));
            fds.extend(guard.map(|guard| PollFd::new(guard, PollFlags::POLLIN)));
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let rang = fds[1].any() == Some(true);
            let reported = guard.is_some() && fds.last().and_then(PollFd::any) == Some(true);
            let signals = self.relay.as_mut().map(Relay::pending);
            let mut happened: Vec<_> = signals
                .into_iter()
                .flatten()
                .map(Incoming::Signal)
                .collect();
            if reported {
                happened.push(Incoming::Guard);
            }
            // Quieted before the channel is read, so that an answer posted in
            // between rings again.
            self.bell.read().ok();
            happened.extend(self.answers.try_iter().map(Incoming::Answer));
            if rang {
                self.timer.unset()?;
                happened.push(Incoming::Timer);
            }
            if !happened.is_empty() {
                return Ok(happened);
            }
        }
    }
}
