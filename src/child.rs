//! The job: started in a process group of its own, signalled, waited for.
//!
//! The process that holds a [`Job`] is its parent and a subreaper (prctl(2),
//! PR_SET_CHILD_SUBREAPER): whatever the job leaves behind becomes its child.
//!
//! The group's number is the pid of its first process, and it stays reserved
//! as long as that process is not reaped. So the first process is reaped last,
//! after every other member of the group has gone: no signal can reach a
//! stranger who was given the same number.
//!
//! This module must not know leases.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Pid, getpid};

use crate::origin;
use crate::signals::{Inherited, Sig};
use crate::supervise::{Ended, Scope, StartFault, Unstarted};
use crate::terminal::Terminal;
use crate::tree::{self, Fate, Question};

/// What to start.
#[derive(Debug)]
pub struct JobSpec {
    /// The command, looked up in `PATH` unless it has a slash.
    pub command: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables to take out of its environment.
    pub remove: Vec<&'static str>,
    /// The job's `PATH`, to tell "not found" from "no interpreter".
    pub path: Option<OsString>,
    /// Mask and dispositions that the job must find.
    pub inherited: Inherited,
    /// The process group whose place in the terminal's foreground the job
    /// takes from its start on, if it is there.
    pub heir_of: Option<Pid>,
}

/// What changed about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A signal of job control stopped it; its number.
    Stopped(i32),
    /// Its first process ended.
    Ended(Ended),
    /// Nobody is left: no member of its group, or after it was asked to
    /// end, or a kill of the tree, no process of its whole tree.
    Gone,
}

/// A job that was started.
#[derive(Debug)]
pub struct Job {
    leader: Pid,
    ended: Option<Ended>,
    gone: bool,
    /// Whether every process of the tree must be gone, not only the group.
    whole: bool,
}

impl Job {
    /// Starts a job in a process group of its own, with these variables added
    /// to its environment. All signals must be blocked in this process.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the command.
    #[expect(
        unsafe_code,
        reason = "the child must set itself up between fork and exec"
    )]
    pub fn start(spec: &JobSpec, set: &[(String, String)]) -> Result<Self, StartFault> {
        let terminal = spec
            .heir_of
            .and_then(|group| Terminal::open().filter(|tty| tty.is_in_foreground(group)));
        let tty = terminal.as_ref().map(|tty| tty.as_fd().as_raw_fd());
        let mut command = command(spec, set);
        command.process_group(0);
        let inherited = spec.inherited;
        let parent = getpid();
        // SAFETY: between fork and exec only async-signal-safe calls are
        // allowed (fork(2)); these are prctl, getppid, getpid, close, ioctl,
        // sigaction, sigprocmask and _exit. The terminal's descriptor is open
        // until the child has executed.
        unsafe {
            command.pre_exec(move || {
                // If the guard is killed, the kernel kills its child at once.
                // It may have happened already.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != parent.as_raw() {
                    libc::_exit(127);
                }
                if let Some(tty) = tty {
                    // In the child, because the job might read before the
                    // parent came to it. SIGTTOU is blocked here, so that a
                    // background group may do it.
                    libc::tcsetpgrp(tty, libc::getpid());
                }
                close_what_was_closed();
                inherited.restore()
            });
        }
        let child = command.spawn().map_err(|error| start_fault(spec, &error))?;
        Ok(Self {
            leader: Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)),
            ended: None,
            gone: false,
            whole: false,
        })
    }

    /// Returns the first process, whose number is that of the group.
    #[must_use]
    pub fn leader(&self) -> Pid {
        self.leader
    }

    /// Passes a signal on: to every process of the tree what asks to end, to
    /// the whole group what a terminal would send there, and to the first
    /// process what a program means for itself.
    pub fn forward(&mut self, sig: Sig) {
        if self.gone {
            return;
        }
        match sig {
            Sig::Usr1 | Sig::Usr2 | Sig::Alrm => send(self.leader.as_raw(), sig.number()),
            _ if sig.asks_to_stop() => self.ask_to_stop(sig),
            _ => self.send_to_group(sig.number()),
        }
    }

    /// Asks every process of the tree to end.
    pub fn terminate(&mut self) {
        if !self.gone {
            self.ask_to_stop(Sig::Term);
        }
    }

    /// Asks the group to end, and leaves those alone who have left it.
    pub fn terminate_group(&mut self) {
        if !self.gone {
            self.send_to_group(Sig::Term.number());
            self.send_to_group(Sig::Cont.number());
        }
    }

    fn ask_to_stop(&mut self, sig: Sig) {
        self.whole = true;
        // Found before the first one dies: what hangs below it changes its
        // parent then, and a search at that moment may miss it.
        let strays = self.strays();
        self.send_to_group(sig.number());
        for entry in strays {
            tree::signal(&entry, sig.number()).ok();
        }
        // A stopped process hears only SIGKILL until it goes on.
        for entry in tree::descendants(&[]) {
            if entry.is_stopped() {
                tree::signal(&entry, Sig::Cont.number()).ok();
            }
        }
    }

    /// Kills the group, or every process of the tree that can be found now. To
    /// be repeated: a process may be forking. The group is killed at once, so
    /// that its members cannot escape by forking.
    pub fn kill(&mut self, scope: Scope) {
        if self.gone {
            return;
        }
        self.send_to_group(libc::SIGKILL);
        if scope == Scope::Group {
            return;
        }
        self.whole = true;
        for entry in self.strays() {
            // EPERM: it has become another user's. It stays in the tree.
            tree::signal(&entry, libc::SIGKILL).ok();
        }
    }

    /// Returns the processes that keep the job from being gone.
    #[must_use]
    pub fn survivors(&self) -> Vec<Pid> {
        if self.gone {
            return Vec::new();
        }
        let entries = if self.whole {
            tree::descendants(&[])
        } else {
            tree::members(self.leader).unwrap_or_default()
        };
        entries.iter().map(|entry| entry.pid).collect()
    }

    /// Returns what has changed since the last call. To be called after
    /// SIGCHLD, and now and then once the first process has ended: not each
    /// end of the others is told to this process.
    ///
    /// # Errors
    ///
    /// Returns an error if the system cannot tell.
    pub fn changes(&mut self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        if self.gone {
            return Ok(changes);
        }
        if self.ended.is_none() {
            if let Some(Fate::Stopped(number)) = tree::ask(self.leader, Question::Stopped)?
                && matches!(number, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
            {
                changes.push(Change::Stopped(number));
            }
            if let Some(Fate::Ended(ended)) = tree::ask(self.leader, Question::Ended)? {
                self.ended = Some(ended);
                changes.push(Change::Ended(ended));
            }
        }
        // Whatever the system says from here on, what was seen is told.
        let others = self.reap_others();
        let gone = self.ended.is_some()
            && (!others || (!self.whole && self.group_is_empty().unwrap_or(false)));
        if gone {
            // Before its number may become somebody else's.
            self.gone = true;
            tree::ask(self.leader, Question::Reap).ok();
            changes.push(Change::Gone);
        }
        Ok(changes)
    }

    fn send_to_group(&self, number: i32) {
        send(-self.leader.as_raw(), number);
    }

    /// Returns the processes of the tree that have left the group.
    fn strays(&self) -> Vec<tree::Entry> {
        let mut entries = tree::descendants(&[]);
        entries.retain(|entry| entry.group != self.leader);
        entries
    }

    /// Tells whether the dead first process is the last of its group.
    fn group_is_empty(&self) -> io::Result<bool> {
        tree::members(self.leader).map(|members| members.is_empty())
    }

    /// Reaps what the job has left behind, and tells whether any of it lives.
    /// Whatever is left of the tree hangs below some child of this process.
    fn reap_others(&self) -> bool {
        let mut alive = false;
        for child in tree::children(getpid()) {
            if child != self.leader {
                alive |= !matches!(tree::ask(child, Question::Reap), Ok(Some(_)));
            }
        }
        alive
    }
}

/// Executes the command in the place of this process, which there must be
/// nothing of dblock's in, and returns what is wrong with it if that fails.
#[expect(
    unsafe_code,
    reason = "what the command must find is set up behind what the library changes"
)]
pub fn replace(spec: &JobSpec, set: &[(String, String)]) -> StartFault {
    nix::sys::prctl::set_child_subreaper(false).ok();
    let mut command = command(spec, set);
    let inherited = spec.inherited;
    // SAFETY: it runs in this process, without a fork, right before exec.
    unsafe {
        command.pre_exec(move || {
            close_what_was_closed();
            inherited.restore()
        });
    }
    start_fault(spec, &command.exec())
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the place where processes are started"
)]
fn command(spec: &JobSpec, set: &[(String, String)]) -> Command {
    let mut command = Command::new(&spec.command);
    command.args(&spec.arguments);
    for name in &spec.remove {
        command.env_remove(name);
    }
    for (name, value) in set {
        command.env(name, value);
    }
    command
}

/// Closes the standard descriptors that were closed at the start.
/// Async-signal-safe.
#[expect(unsafe_code, reason = "the descriptors have no owner")]
fn close_what_was_closed() {
    for descriptor in 0..3 {
        if origin::was_closed(descriptor) {
            // SAFETY: the runtime opened it for itself, and uses it no more.
            unsafe { libc::close(i32::from(descriptor)) };
        }
    }
}

/// Sends a signal to a process or, if negative, to a group.
fn send(target: i32, number: i32) {
    // A number that the nix crate knows for sure: all callers pass constants.
    if let Ok(signal) = nix::sys::signal::Signal::try_from(number) {
        // ESRCH: it ended by itself. EPERM: it is another user's by now.
        nix::sys::signal::kill(Pid::from_raw(target), signal).ok();
    }
}

/// Tells what is wrong with a command that did not start. A script whose
/// interpreter is missing gives the same error as a missing script.
fn start_fault(spec: &JobSpec, error: &io::Error) -> StartFault {
    let missing = error.kind() == io::ErrorKind::NotFound;
    let shown = Path::new(&spec.command).display();
    let busy = matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EAGAIN | Errno::ENOMEM)
    );
    match find(spec) {
        // The system has no process to give; the command is not at fault.
        _ if busy => StartFault {
            kind: Unstarted::NoProcess,
            text: format!("cannot start a process for {shown}: {error}"),
        },
        Some(file) if missing => StartFault {
            kind: Unstarted::NotExecutable,
            text: format!(
                "cannot execute {}: its interpreter (the '#!' line or the loader) is not found",
                file.display()
            ),
        },
        None if missing => StartFault {
            kind: Unstarted::NotFound,
            text: format!("command not found: {shown}"),
        },
        _ => StartFault {
            kind: Unstarted::NotExecutable,
            text: format!("cannot execute {shown}: {error}"),
        },
    }
}

fn find(spec: &JobSpec) -> Option<PathBuf> {
    let command = Path::new(&spec.command);
    let executable = |file: &Path| {
        fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if command.as_os_str().is_empty() {
        return None;
    }
    if command.to_string_lossy().contains('/') {
        return command.exists().then(|| command.to_owned());
    }
    std::env::split_paths(spec.path.as_ref()?)
        .map(|folder| folder.join(command))
        .find(|file| executable(file))
}
