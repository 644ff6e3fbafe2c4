//! The tree of processes below this one: who is in it, and how to signal a
//! member without ever hitting a stranger.
//!
//! A pid that was read from `/proc` may belong to somebody else by the time a
//! signal is sent. So each is first pinned by a pidfd (pidfd_open(2)), then its
//! parent is looked at again, and the signal goes through the pidfd.
//!
//! This module must not know why anybody is signalled.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, getpid};

use crate::clock;
use crate::supervise::Ended;

/// A line of proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The process.
    pub pid: Pid,
    /// Its parent.
    pub parent: Pid,
    /// Its process group.
    pub group: Pid,
    state: u8,
    threads: u32,
}

impl Entry {
    /// Reads the entry of a process; `None` if there is no such process.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name in parentheses may itself hold parentheses and blanks.
    fn parse(stat: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(stat);
        let (before, behind) = text.rsplit_once(')')?;
        let pid = before.split_once(' ')?.0;
        let mut fields = behind.split_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let mut number = || fields.next()?.parse().ok().map(Pid::from_raw);
        let (parent, group) = (number()?, number()?);
        // From the sixth field, the session, to the twentieth.
        let threads = fields.nth(14)?.parse().ok()?;
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok()?),
            parent,
            group,
            state,
            threads,
        })
    }

    /// Tells whether the process is dead, even if nobody has waited for it. A
    /// process whose first thread has ended looks like a zombie, and works on
    /// with the others.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        match self.state {
            b'Z' => self.threads <= 1,
            state => matches!(state, b'X' | b'x'),
        }
    }

    /// Tells whether the process is stopped by a signal.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.state == b'T'
    }
}

/// Returns the children of a process. The kernel keeps them by thread
/// (proc_tid_children(5)); where it does not list them, every process is asked
/// for its parent.
#[must_use]
pub fn children(parent: Pid) -> Vec<Pid> {
    listed_children(parent).unwrap_or_else(|| {
        let all = everybody().unwrap_or_default();
        let own = all.iter().filter(|entry| entry.parent == parent);
        own.map(|entry| entry.pid).collect()
    })
}

fn listed_children(parent: Pid) -> Option<Vec<Pid>> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else {
        // The process is gone.
        return Some(Vec::new());
    };
    let mut children = Vec::new();
    for task in tasks.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(list) => {
                let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
                children.extend(pids.map(Pid::from_raw));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && task.path().exists() => {
                return None;
            }
            // The thread is gone.
            Err(_) => {}
        }
    }
    Some(children)
}

/// Tells whether this process is somewhere below another one.
#[must_use]
pub fn is_below(ancestor: Pid) -> bool {
    let mut pid = getpid();
    while let Some(entry) = Entry::of(pid) {
        if entry.parent == ancestor {
            return true;
        }
        pid = entry.parent;
    }
    false
}

/// Returns every process of the system.
fn everybody() -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        if entry.file_name().as_bytes().iter().all(u8::is_ascii_digit) {
            // It may have ended since the folder was read.
            if let Ok(stat) = fs::read(entry.path().join("stat")) {
                entries.extend(Entry::parse(&stat));
            }
        }
    }
    Ok(entries)
}

/// Returns the members of a process group that are not dead.
///
/// # Errors
///
/// Returns an error if `/proc` cannot be read.
pub fn members(group: Pid) -> io::Result<Vec<Entry>> {
    let mut entries = everybody()?;
    entries.retain(|entry| entry.group == group && !entry.is_dead());
    Ok(entries)
}

/// Returns the processes below this one that are not dead, parents before
/// their children. Those of `left_out` and what is below them are not among
/// them.
#[must_use]
pub fn descendants(left_out: &[Pid]) -> Vec<Entry> {
    let mut found: Vec<Entry> = Vec::new();
    let mut parents = vec![getpid()];
    while let Some(parent) = parents.pop() {
        for child in children(parent) {
            if let Some(entry) = Entry::of(child)
                && entry.parent == parent
                && !left_out.contains(&child)
                && !found.iter().any(|other| other.pid == child)
            {
                found.push(entry);
                parents.push(child);
            }
        }
    }
    found.retain(|entry| !entry.is_dead());
    found
}

/// What has become of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was stopped by the signal with this number.
    Stopped(i32),
    /// It ended.
    Ended(Ended),
}

/// What is asked about a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Was it stopped since the last time?
    Stopped,
    /// Has it ended? It stays a zombie, which keeps its number its own.
    Ended,
    /// Has it ended? Its number may be given to another process after that.
    Reap,
}

/// Asks about a child without waiting for it. `None` means no, also if there
/// is no such child.
///
/// # Errors
///
/// Returns what waitid(2) says.
#[expect(
    unsafe_code,
    reason = "nix's waitid and waitpid cannot tell of a death by a real-time signal"
)]
pub fn ask(child: Pid, question: Question) -> io::Result<Option<Fate>> {
    let id = libc::id_t::try_from(child.as_raw()).unwrap_or(libc::id_t::MAX);
    let options = libc::WNOHANG
        | match question {
            Question::Stopped => libc::WSTOPPED,
            Question::Ended => libc::WEXITED | libc::WNOWAIT,
            Question::Reap => libc::WEXITED,
        };
    // SAFETY: `info` is zeroed, which is a valid value, and outlives the call;
    // its union holds a child's state, as waitid(2) says, if a pid was set.
    let (pid, code, status) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        loop {
            if libc::waitid(libc::P_PID, id, &raw mut info, options) == 0 {
                break;
            }
            match Errno::last() {
                Errno::EINTR => {}
                Errno::ECHILD => return Ok(None),
                error => return Err(error.into()),
            }
        }
        (info.si_pid(), info.si_code, info.si_status())
    };
    if pid == 0 {
        return Ok(None);
    }
    Ok(Some(match code {
        libc::CLD_STOPPED | libc::CLD_TRAPPED => Fate::Stopped(status),
        libc::CLD_EXITED => Fate::Ended(Ended::Exited(u8::try_from(status).unwrap_or(u8::MAX))),
        _ => Fate::Ended(Ended::Signaled(status)),
    }))
}

/// Sends a signal to a process, unless it is not the one any more that the
/// entry was read of.
///
/// # Errors
///
/// Returns what pidfd_send_signal(2) says, but for a process that is gone:
/// EPERM if it is another user's by now.
pub fn signal(entry: &Entry, number: i32) -> io::Result<()> {
    // A child's number is its own until this process waits for it.
    if entry.parent == getpid() && Entry::of(entry.pid).is_some_and(|now| now.parent == getpid()) {
        return send_direct(entry.pid, number);
    }
    let pinned = match pin(entry.pid) {
        Ok(pinned) => pinned,
        Err(Errno::ESRCH) => return Ok(()),
        // Kernels before 5.3 have no pidfds.
        Err(Errno::ENOSYS) => return send_unpinned(entry, number),
        Err(error) => return Err(error.into()),
    };
    // Its parent may have ended in between, and then this process, or a
    // subreaper between, is the parent.
    let same =
        Entry::of(entry.pid).is_some_and(|now| now.parent == entry.parent || is_descendant(&now));
    if !same {
        return Ok(());
    }
    match send(&pinned, number) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits up to `limit` for the end of a process, and tells whether it has
/// ended. One that is dead and not reaped counts, and so does one that is gone.
pub fn await_end(pid: Pid, limit: Duration) -> bool {
    let until = clock::now() + limit;
    let Ok(pinned) = pin(pid) else {
        // Gone, or a kernel before 5.3.
        while Entry::of(pid).is_some_and(|entry| !entry.is_dead()) {
            if clock::now() >= until {
                return false;
            }
            poll(&mut [], PollTimeout::from(1u8)).ok();
        }
        return true;
    };
    loop {
        let mut fds = [PollFd::new(pinned.as_fd(), PollFlags::POLLIN)];
        let left = PollTimeout::try_from(until - clock::now()).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, left) {
            // A signal that comes meanwhile is heard of later.
            Err(Errno::EINTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}

fn is_descendant(entry: &Entry) -> bool {
    let own = getpid();
    let mut parent = entry.parent;
    while parent.as_raw() > 1 {
        if parent == own {
            return true;
        }
        match Entry::of(parent) {
            Some(above) => parent = above.parent,
            None => return false,
        }
    }
    false
}

fn send_unpinned(entry: &Entry, number: i32) -> io::Result<()> {
    if Entry::of(entry.pid).is_none_or(|now| now.parent != entry.parent) {
        return Ok(());
    }
    send_direct(entry.pid, number)
}

fn send_direct(pid: Pid, number: i32) -> io::Result<()> {
    let Ok(signal) = nix::sys::signal::Signal::try_from(number) else {
        return Ok(());
    };
    match nix::sys::signal::kill(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[expect(unsafe_code, reason = "no library of ours wraps pidfds")]
fn pin(pid: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY: pidfd_open takes two numbers and returns a new descriptor, which
    // nobody else owns.
    unsafe {
        let result = libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0);
        let number = i32::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
        Ok(OwnedFd::from_raw_fd(number))
    }
}

#[expect(unsafe_code, reason = "no library of ours wraps pidfds")]
fn send(pinned: &OwnedFd, number: i32) -> Result<(), Errno> {
    // SAFETY: the descriptor is open, and a null pointer for the information
    // makes the kernel fill it in.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pinned.as_raw_fd(),
            number,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_stat() {
        let of = |line: &str| Entry::parse(line.as_bytes());
        let line = |state: &str, threads: u32| {
            format!("50 (a) b (c)) {state} 7 42 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 1")
        };
        let entry = of(&line("S", 3)).expect("an entry");
        assert_eq!(entry.pid, Pid::from_raw(50));
        assert_eq!(entry.parent, Pid::from_raw(7));
        assert_eq!(entry.group, Pid::from_raw(42));
        assert!(!entry.is_dead() && !entry.is_stopped());
        assert!(of(&line("T", 1)).is_some_and(|e| e.is_stopped()));
        assert!(of(&line("Z", 1)).is_some_and(|e| e.is_dead()));
        assert!(of(&line("Z", 2)).is_some_and(|e| !e.is_dead()));
        assert_eq!(of("nonsense"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn this_process_has_an_entry() {
        let own = Entry::of(getpid()).expect("an entry");
        assert_eq!(own.parent, nix::unistd::getppid());
        assert!(
            members(own.group)
                .expect("/proc")
                .iter()
                .any(|e| e.pid == own.pid)
        );
        assert!(listed_children(own.parent).is_some_and(|all| all.contains(&own.pid)));
    }
}
