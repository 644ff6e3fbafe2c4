//! Signals, as typed events; the only user of signal-hook and ctrlc.
//!
//! A command that holds or is about to hold a lease installs a [`Relay`] as
//! its first act. The two crates must not both be installed in one process:
//! whichever comes second may take signals away from the first.
//!
//! This module must not decide anything.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::unistd::Pid;
use signal_hook::consts;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

use crate::origin;

/// A signal that dblock passes on or acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sig {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
    /// SIGHUP.
    Hup,
    /// SIGQUIT.
    Quit,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGALRM.
    Alrm,
    /// SIGWINCH.
    Winch,
    /// SIGTSTP.
    Tstp,
    /// SIGCONT.
    Cont,
    /// SIGCHLD.
    Child,
}

impl Sig {
    const ALL: [Self; 11] = [
        Self::Term,
        Self::Int,
        Self::Hup,
        Self::Quit,
        Self::Usr1,
        Self::Usr2,
        Self::Alrm,
        Self::Winch,
        Self::Tstp,
        Self::Cont,
        Self::Child,
    ];

    /// Returns the signal's number on this system.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::Term => consts::SIGTERM,
            Self::Int => consts::SIGINT,
            Self::Hup => consts::SIGHUP,
            Self::Quit => consts::SIGQUIT,
            Self::Usr1 => consts::SIGUSR1,
            Self::Usr2 => consts::SIGUSR2,
            Self::Alrm => consts::SIGALRM,
            Self::Winch => consts::SIGWINCH,
            Self::Tstp => consts::SIGTSTP,
            Self::Cont => consts::SIGCONT,
            Self::Child => consts::SIGCHLD,
        }
    }

    /// Returns the signal with this number, if it is one of these.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|sig| sig.number() == number)
    }

    /// Tells whether the signal asks a program to end.
    #[must_use]
    pub fn asks_to_stop(self) -> bool {
        matches!(self, Self::Term | Self::Int | Self::Hup | Self::Quit)
    }

    /// Tells whether the signal ends a program that does not handle it.
    #[must_use]
    pub fn ends_by_default(self) -> bool {
        self.asks_to_stop() || matches!(self, Self::Usr1 | Self::Usr2 | Self::Alrm)
    }
}

/// Returns a signal's name, such as `SIGTERM`, or its number.
#[must_use]
pub fn name(number: i32) -> String {
    signal_hook::low_level::signal_name(number)
        .map_or_else(|| format!("signal {number}"), str::to_owned)
}

/// Tells whether a stop by this signal means that the process needs the
/// terminal's foreground.
#[must_use]
pub fn lacks_terminal(number: i32) -> bool {
    matches!(number, consts::SIGTTIN | consts::SIGTTOU)
}

/// Set by the first handler that is installed in this process.
static INSTALLED: AtomicBool = AtomicBool::new(false);

fn install_once() -> io::Result<()> {
    if INSTALLED.swap(true, Ordering::SeqCst) {
        return Err(io::Error::other("signal handlers are installed already"));
    }
    Ok(())
}

/// Collects the signals that reach this process, until they are asked for.
#[derive(Debug)]
pub struct Relay {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Relay {
    /// Installs the handlers. A signal that was ignored at start stays
    /// ignored, here and in the job (`nohup`, `&`); SIGCHLD alone is taken
    /// over in any case, because without it no child can be waited for.
    ///
    /// # Errors
    ///
    /// Returns an error if handlers are installed already or the system
    /// refuses one.
    pub fn install() -> io::Result<Self> {
        install_once()?;
        // A background process that writes to a terminal with `tostop` set is
        // stopped by SIGTTOU, and all of its group by SIGTTIN if another member
        // reads; a stopped dblock renews nothing.
        set_disposition(consts::SIGTTOU, libc::SIG_IGN)?;
        set_disposition(consts::SIGTTIN, libc::SIG_IGN)?;
        let wanted: Vec<i32> = Sig::ALL
            .into_iter()
            .filter(|&sig| sig == Sig::Child || !is_ignored(sig.number()))
            .map(Sig::number)
            .collect();
        let (read, write) = UnixStream::pair()?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, wanted)?;
        Ok(Self { delivery })
    }

    /// Returns the signals that have come since the last call, each once.
    pub fn pending(&mut self) -> Vec<Sig> {
        self.delivery
            .pending()
            .filter_map(Sig::from_number)
            .collect()
    }
}

impl AsFd for Relay {
    /// Readable when [`Relay::pending`] has something to return.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

/// The mask and the dispositions that a job must find, because dblock, its
/// guard or Rust's runtime change them. All other dispositions are unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    child_ignored: bool,
    pipe_ignored: bool,
    mask: SigSet,
}

impl Inherited {
    /// Returns what there is now, with this mask. To be called before any
    /// handler is installed.
    #[must_use]
    pub fn now(mask: SigSet) -> Self {
        Self {
            child_ignored: is_ignored(consts::SIGCHLD),
            pipe_ignored: origin::pipe_was_ignored(),
            mask,
        }
    }

    /// Gives a child between fork and exec what it must find.
    /// Async-signal-safe.
    ///
    /// # Errors
    ///
    /// Returns what sigaction(2) and sigprocmask(2) say.
    pub fn restore(self) -> io::Result<()> {
        let disposition = |ignored| {
            if ignored {
                libc::SIG_IGN
            } else {
                libc::SIG_DFL
            }
        };
        set_disposition(consts::SIGCHLD, disposition(self.child_ignored))?;
        set_disposition(consts::SIGPIPE, disposition(self.pipe_ignored))?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.mask), None)?;
        Ok(())
    }
}

/// Keeps all signals from this thread and from those that it starts: handlers
/// of the program around the library run on the program's own threads, and
/// interrupt no call here.
pub fn leave_to_other_threads() {
    // It cannot fail with valid arguments (pthread_sigmask(3)).
    SigSet::all().thread_block().ok();
}

/// Makes sure that children can be waited for, also if SIGCHLD was ignored.
///
/// # Errors
///
/// Returns what sigaction(2) says.
pub fn heed_children() -> io::Result<()> {
    set_disposition(consts::SIGCHLD, libc::SIG_DFL)
}

#[expect(
    unsafe_code,
    reason = "no safe interface tells a disposition without changing it"
)]
fn is_ignored(number: i32) -> bool {
    // SAFETY: all zeroes is a valid `sigaction`, and with a null pointer for
    // the new action the call only writes the present one to `old`.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut old) == 0
            && old.sa_sigaction == libc::SIG_IGN
    }
}

#[expect(unsafe_code, reason = "sigaction(2) has no safe interface")]
fn set_disposition(number: i32, disposition: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sigaction`; callers pass SIG_IGN or
    // SIG_DFL, so that no handler of ours can be called.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = disposition;
        libc::sigaction(number, &raw const action, std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Ends this process by the signal itself, without a core, so that whoever
/// waits for it sees how the job died. Returns only if that is impossible, as
/// it is for the first process of a container.
pub fn die_of(number: i32) {
    // The kernel writes no core of a process that is not dumpable, not even
    // through a pipe in core_pattern, which ignores the limit (core(5)).
    nix::sys::prctl::set_dumpable(false).ok();
    setrlimit(Resource::RLIMIT_CORE, 0, 0).ok();
    if number != libc::SIGKILL && number != libc::SIGSTOP {
        set_disposition(number, libc::SIG_DFL).ok();
    }
    unblock_and_raise(number);
}

/// Stops this process by a signal of job control, until it is continued.
/// Returns at once where nobody could continue it: the kernel discards these
/// signals in an orphaned process group.
pub fn stop_self(number: i32) {
    with_default(number, || unblock_and_raise(number));
}

/// Stops this process and what surrounds it in its process group, as the
/// terminal would have done if dblock were not between it and the job.
pub fn stop_group(number: i32) {
    with_default(number, || send_to_group(number));
}

#[expect(unsafe_code, reason = "sigaction(2) has no safe interface")]
fn with_default(number: i32, act: impl FnOnce()) {
    // SAFETY: `old` is a valid zeroed value that the first call fills in and
    // the last takes back as it is.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(number, &raw const default, &raw mut old);
        act();
        libc::sigaction(number, &raw const old, std::ptr::null_mut());
    }
}

/// Sends a signal to this process's group, this process included.
pub fn send_to_group(number: i32) {
    if let Ok(signal) = Signal::try_from(number) {
        kill(Pid::from_raw(0), signal).ok();
    }
}

#[expect(
    unsafe_code,
    reason = "the nix crate knows no real-time signals, and a job may die of one"
)]
fn unblock_and_raise(number: i32) {
    // SAFETY: the set is initialised by sigemptyset before it is used; the
    // other calls take numbers only.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, number);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(number);
    }
}

/// Notices Ctrl-C for a command that only looks, so that it can leave the
/// terminal tidy. SIGTERM keeps its default action.
#[derive(Debug)]
pub struct Interrupt {
    receiver: std::sync::mpsc::Receiver<()>,
}

impl Interrupt {
    /// Installs the handler.
    ///
    /// # Errors
    ///
    /// Returns an error if handlers are installed already.
    pub fn install() -> io::Result<Self> {
        install_once()?;
        let (sender, receiver) = std::sync::mpsc::channel();
        #[expect(clippy::disallowed_methods, reason = "this is the place for it")]
        ctrlc::try_set_handler(move || sender.send(()).unwrap_or_default())
            .map_err(io::Error::other)?;
        Ok(Self { receiver })
    }

    /// Waits up to `pause`, and tells whether Ctrl-C came in that time.
    pub fn wait(&self, pause: std::time::Duration) -> bool {
        self.receiver.recv_timeout(pause).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_agree() {
        for sig in Sig::ALL {
            assert_eq!(Sig::from_number(sig.number()), Some(sig));
        }
        assert_eq!(name(Sig::Term.number()), "SIGTERM");
        assert_eq!(name(40), "signal 40");
        assert_eq!(Sig::from_number(libc::SIGKILL), None);
    }
}
