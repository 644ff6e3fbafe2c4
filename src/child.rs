//! The job: started in a process group of its own, signalled, waited for.
//!
//! The group's number is the pid of its first process, and it stays reserved
//! as long as that process is not reaped. So the first process is reaped last,
//! after every other member of the group has gone: no signal can reach a
//! stranger who was given the same number.
//!
//! dblock is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): what the job
//! leaves behind becomes dblock's child, so that its end is noticed.
//!
//! This module must not know leases.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

use crate::origin;
use crate::signals::{Inherited, Sig};
use crate::supervise::{Ended, StartFault};

/// What to start.
#[derive(Debug)]
pub struct JobSpec {
    /// The command, looked up in `PATH` unless it has a slash.
    pub command: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables to set in the job's environment.
    pub set: Vec<(&'static str, String)>,
    /// Variables to take out of it.
    pub remove: Vec<&'static str>,
    /// The job's `PATH`, to tell "not found" from "no interpreter".
    pub path: Option<OsString>,
    /// The dispositions that the job must find.
    pub inherited: Inherited,
}

/// What changed about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The terminal stopped it.
    Stopped,
    /// Its first process ended.
    Ended(Ended),
    /// No member of its group is left.
    Gone,
}

/// A job that was started.
#[derive(Debug)]
pub struct Job {
    leader: Pid,
    terminal: Option<Terminal>,
    ended: Option<Ended>,
    gone: bool,
}

impl Job {
    /// Starts a job in a process group of its own, in the terminal's
    /// foreground if dblock is.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the command.
    #[expect(
        unsafe_code,
        clippy::disallowed_methods,
        reason = "this is the place where processes are started, and the child must set itself up between fork and exec"
    )]
    pub fn start(spec: &JobSpec) -> Result<Self, StartFault> {
        let failed = |error: &io::Error| start_fault(spec, error);
        nix::sys::prctl::set_child_subreaper(true).map_err(|e| failed(&e.into()))?;
        let terminal = Terminal::of_foreground();
        let mut command = Command::new(&spec.command);
        command.args(&spec.arguments);
        for name in &spec.remove {
            command.env_remove(name);
        }
        for (name, value) in &spec.set {
            command.env(name, value);
        }
        command.process_group(0);
        let inherited = spec.inherited;
        let tty = terminal.as_ref().map(|terminal| terminal.tty.as_raw_fd());
        // SAFETY: between fork and exec only async-signal-safe calls are
        // allowed (fork(2)); these are sigaction, getpid, close and ioctl. The
        // terminal's descriptor is open until the child has executed.
        unsafe {
            command.pre_exec(move || {
                if let Some(tty) = tty {
                    // In the child, because the job might read before the
                    // parent came to it; SIGTTOU is still ignored here, so
                    // that a background group may do it.
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
        let child = command.spawn().map_err(|error| {
            if let Some(terminal) = &terminal {
                terminal.take_back();
            }
            failed(&error)
        })?;
        let leader = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        Ok(Self {
            leader,
            terminal,
            ended: None,
            gone: false,
        })
    }

    /// Passes a signal on: to the whole group what a terminal would send to
    /// the whole group and what asks to end; to the first process what a
    /// program means for itself.
    pub fn forward(&self, sig: Sig) {
        if self.gone {
            return;
        }
        let target = match sig {
            Sig::Usr1 | Sig::Usr2 | Sig::Alrm => self.leader.as_raw(),
            _ => -self.leader.as_raw(),
        };
        send(target, sig.number());
        // A stopped process hears only SIGKILL until it goes on.
        if sig.asks_to_stop() && self.has_stopped_members() {
            send(-self.leader.as_raw(), Sig::Cont.number());
        }
    }

    fn has_stopped_members(&self) -> bool {
        members(self.leader).is_ok_and(|all| all.iter().any(|member| member.state == 'T'))
    }

    /// Asks the group to end.
    pub fn terminate(&self) {
        self.forward(Sig::Term);
    }

    /// Kills the group.
    pub fn kill(&self) {
        if !self.gone {
            send(-self.leader.as_raw(), libc::SIGKILL);
        }
    }

    /// Lets a stopped group go on, in the foreground if dblock is there.
    pub fn resume(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.hand_over(self.leader);
        }
        self.forward(Sig::Cont);
    }

    /// Tells whether the first process has ended while others of its group
    /// live: not every one of their ends raises SIGCHLD here.
    #[must_use]
    pub fn has_leftovers(&self) -> bool {
        self.ended.is_some() && !self.gone
    }

    /// Returns what has changed since the last call. To be called after
    /// SIGCHLD.
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
            if wait_for(self.leader, libc::WSTOPPED)?.is_some_and(|found| {
                matches!(found.status, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
            }) {
                if let Some(terminal) = &self.terminal {
                    terminal.take_back();
                }
                changes.push(Change::Stopped);
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
        if self.ended.is_some() && self.group_is_empty()? {
            waitpid(self.leader, Some(WaitPidFlag::WNOHANG))?;
            self.gone = true;
            if let Some(terminal) = &self.terminal {
                terminal.take_back();
            }
            changes.push(Change::Gone);
        }
        Ok(changes)
    }

    /// Tells whether the dead first process is the last of its group. Reaps
    /// what the job left behind and what has ended since.
    fn group_is_empty(&self) -> io::Result<bool> {
        let Some(children) = own_children() else {
            return Ok(members(self.leader)?.is_empty());
        };
        let mut others = false;
        for child in children {
            if child == self.leader {
                continue;
            }
            match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                Ok(status) if status.pid().is_some() => {}
                Ok(_) => others = true,
                Err(Errno::ECHILD) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Whatever is left of the tree hangs below some child of ours.
        if others {
            return Ok(members(self.leader)?.is_empty());
        }
        Ok(true)
    }
}

impl Drop for Job {
    /// Kills what is left if dblock can supervise it no longer, because of an
    /// error or a panic. The row stays until it expires then: nobody can tell
    /// when the job is gone.
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process or, if negative, to a group.
fn send(target: i32, number: i32) {
    // A number that the nix crate knows for sure: all callers pass constants.
    let Ok(signal) = nix::sys::signal::Signal::try_from(number) else {
        return;
    };
    // ESRCH: it ended by itself. EPERM: it is another user's by now.
    nix::sys::signal::kill(Pid::from_raw(target), signal).ok();
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

/// Returns the children of this process, or nothing if the kernel does not
/// list them (proc_pid_task_children, CONFIG_PROC_CHILDREN).
fn own_children() -> Option<Vec<Pid>> {
    let mut children = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()? {
        let list = fs::read_to_string(task.ok()?.path().join("children")).ok()?;
        let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
        children.extend(pids.map(Pid::from_raw));
    }
    Some(children)
}

/// A living member of a process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    /// The state's letter in proc_pid_stat(5).
    state: char,
}

/// Returns the members of a process group that are not dead.
fn members(group: Pid) -> io::Result<Vec<Member>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        if !entry.file_name().as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // It may have ended since the folder was read.
        if let Ok(stat) = fs::read(entry.path().join("stat")) {
            members.extend(member(&stat, group));
        }
    }
    Ok(members)
}

/// Reads state and group from a line of proc_pid_stat(5). The name in
/// parentheses may itself hold parentheses and blanks.
fn member(stat: &[u8], group: Pid) -> Option<Member> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = String::from_utf8_lossy(&stat[end + 1..]);
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let number: i32 = fields.nth(1)?.parse().ok()?;
    let alive = !matches!(state, 'Z' | 'X' | 'x');
    (alive && number == group.as_raw()).then_some(Member { state })
}

/// The terminal, if dblock was in its foreground when it started the job.
#[derive(Debug)]
struct Terminal {
    tty: File,
}

impl Terminal {
    fn of_foreground() -> Option<Self> {
        let tty = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOCTTY)
            .open("/dev/tty")
            .ok()?;
        (tcgetpgrp(&tty) == Ok(getpgrp())).then_some(Self { tty })
    }

    fn hand_over(&self, group: Pid) {
        if tcgetpgrp(&self.tty) == Ok(getpgrp()) {
            // It fails only if the terminal is gone, and then nobody misses it.
            tcsetpgrp(&self.tty, group).ok();
        }
    }

    /// Works from the background, because SIGTTOU is ignored.
    fn take_back(&self) {
        tcsetpgrp(&self.tty, getpgrp()).ok();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_by_their_stat_line() {
        let of = |line: &str| member(line.as_bytes(), Pid::from_raw(42)).map(|m| m.state);
        assert_eq!(of("50 (a) b (c)) S 1 42 42 0 -1"), Some('S'));
        assert_eq!(of("50 (sh) T 1 42 42 0 -1"), Some('T'));
        assert_eq!(of("50 (sh) Z 1 42 42 0 -1"), None);
        assert_eq!(of("50 (sh) S 42 43 42 0 -1"), None);
        assert_eq!(of("nonsense"), None);
    }
}
