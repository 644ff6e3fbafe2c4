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
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpid};

use crate::origin;
use crate::signals::{Inherited, Sig};
use crate::supervise::{Ended, Scope, StartFault};
use crate::terminal::Terminal;
use crate::tree;

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
    /// takes, if it is there.
    pub heir_of: Pid,
}

/// What changed about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A signal of job control stopped it; its number.
    Stopped(i32),
    /// Its first process ended.
    Ended(Ended),
    /// Nobody is left: no member of its group, or after [`Job::terminate`] or a
    /// kill of the tree no process of its whole tree.
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
        clippy::disallowed_methods,
        reason = "this is the place where processes are started, and the child must set itself up between fork and exec"
    )]
    pub fn start(spec: &JobSpec, set: &[(String, String)]) -> Result<Self, StartFault> {
        let terminal = Terminal::open().filter(|tty| tty.is_in_foreground(spec.heir_of));
        let tty = terminal.as_ref().map(|tty| tty.as_fd().as_raw_fd());
        let mut command = Command::new(&spec.command);
        command.args(&spec.arguments).process_group(0);
        for name in &spec.remove {
            command.env_remove(name);
        }
        for (name, value) in set {
            command.env(name, value);
        }
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
                for descriptor in 0..3 {
                    if origin::was_closed(descriptor) {
                        libc::close(i32::from(descriptor));
                    }
                }
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

    /// Passes a signal on: to the whole group what a terminal would send to
    /// the whole group and what asks to end; to the first process what a
    /// program means for itself.
    pub fn forward(&self, sig: Sig) {
        if self.gone {
            return;
        }
        match sig {
            Sig::Usr1 | Sig::Usr2 | Sig::Alrm => send(self.leader.as_raw(), sig.number()),
            _ => self.send_to_group(sig.number()),
        }
        // A stopped process hears only SIGKILL until it goes on.
        if sig.asks_to_stop() && self.has_stopped_members() {
            self.send_to_group(Sig::Cont.number());
        }
    }

    /// Asks every process of the tree to end.
    pub fn terminate(&mut self) {
        self.whole = true;
        if self.gone {
            return;
        }
        for number in [Sig::Term.number(), Sig::Cont.number()] {
            self.send_to_group(number);
            for entry in self.strays() {
                tree::signal(&entry, number).ok();
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
            if let Some(found) = wait_for(self.leader, libc::WSTOPPED)?
                && matches!(found.status, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
            {
                changes.push(Change::Stopped(found.status));
            }
            if let Some(found) = wait_for(self.leader, libc::WEXITED | libc::WNOWAIT)? {
                let ended = match found.code {
                    libc::CLD_EXITED => {
                        Ended::Exited(u8::try_from(found.status).unwrap_or(u8::MAX))
                    }
                    _ => Ended::Signaled(found.status),
                };
                self.ended = Some(ended);
                changes.push(Change::Ended(ended));
            }
        }
        let others = self.reap_others()?;
        if self.ended.is_some() && (!others || (!self.whole && self.group_is_empty()?)) {
            waitpid(self.leader, Some(WaitPidFlag::WNOHANG))?;
            self.gone = true;
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

    fn has_stopped_members(&self) -> bool {
        tree::members(self.leader).is_ok_and(|all| all.iter().any(tree::Entry::is_stopped))
    }

    /// Tells whether the dead first process is the last of its group.
    fn group_is_empty(&self) -> io::Result<bool> {
        tree::members(self.leader).map(|members| members.is_empty())
    }

    /// Reaps what the job has left behind, and tells whether any of it lives.
    /// Whatever is left of the tree hangs below some child of this process.
    fn reap_others(&self) -> io::Result<bool> {
        let mut alive = false;
        for child in tree::children(getpid()) {
            if child == self.leader {
                continue;
            }
            match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                Ok(status) if status.pid().is_some() => {}
                Ok(_) => alive = true,
                Err(Errno::ECHILD) => {}
                // A death by a real-time signal, which the library cannot
                // name; the child is reaped all the same.
                Err(Errno::EINVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(alive)
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

struct Found {
    code: i32,
    status: i32,
}

/// Asks for a state of a child without waiting for it.
#[expect(
    unsafe_code,
    reason = "nix's waitid cannot tell of a death by a real-time signal"
)]
fn wait_for(child: Pid, states: i32) -> io::Result<Option<Found>> {
    let id = libc::id_t::try_from(child.as_raw()).unwrap_or(libc::id_t::MAX);
    // SAFETY: `info` is zeroed, which is a valid value, and outlives the call;
    // its union holds a child's state, as waitid(2) says, if a pid was set.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        loop {
            let options = states | libc::WNOHANG;
            if libc::waitid(libc::P_PID, id, &raw mut info, options) == 0 {
                break;
            }
            match Errno::last() {
                Errno::EINTR => {}
                // A dead child is none to a call that asks for stopped ones.
                Errno::ECHILD if states & libc::WEXITED == 0 => return Ok(None),
                error => return Err(error.into()),
            }
        }
        Ok((info.si_pid() != 0).then(|| Found {
            code: info.si_code,
            status: info.si_status(),
        }))
    }
}

/// Tells what is wrong with a command that did not start. A script whose
/// interpreter is missing gives the same error as a missing script.
fn start_fault(spec: &JobSpec, error: &io::Error) -> StartFault {
    let missing = error.kind() == io::ErrorKind::NotFound;
    let shown = Path::new(&spec.command).display();
    match find(spec) {
        Some(file) if missing => StartFault {
            not_found: false,
            text: format!(
                "cannot execute {}: its interpreter (the '#!' line or the loader) is not found",
                file.display()
            ),
        },
        None if missing => StartFault {
            not_found: true,
            text: format!("command not found: {shown}"),
        },
        _ => StartFault {
            not_found: false,
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
