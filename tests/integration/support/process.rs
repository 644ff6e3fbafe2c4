//! Processes as the kernel shows them, identified so that a number which is
//! given to a new process is never taken for the old one.

use std::fs;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::wait;

/// One process: its number and the moment when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: i32,
    started: u64,
}

/// What `/proc/PID/stat` says.
struct Stat {
    state: char,
    group: i32,
    started: u64,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name stands in parentheses and may hold anything.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

impl Process {
    /// Returns the process that has this number now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let started = stat(pid)?.started;
        Some(Self { pid, started })
    }

    /// Returns the living process whose number a job has printed.
    #[track_caller]
    pub(crate) fn printed(line: &str) -> Self {
        let pid = line
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("{line:?} is not a pid"));
        Self::of(pid).unwrap_or_else(|| panic!("process {pid} is gone already"))
    }

    /// Returns the process's number.
    pub(crate) fn pid(self) -> i32 {
        self.pid
    }

    fn stat(self) -> Option<Stat> {
        stat(self.pid).filter(|now| now.started == self.started)
    }

    /// Tells whether the process can still carry out an instruction. One that
    /// has ended and is not reaped yet cannot.
    pub(crate) fn is_alive(self) -> bool {
        self.stat()
            .is_some_and(|now| !matches!(now.state, 'Z' | 'X'))
    }

    /// Returns the process's group, if the process is still there.
    pub(crate) fn group(self) -> Option<i32> {
        self.stat().map(|now| now.group)
    }

    /// Waits until the process is stopped, as by SIGSTOP.
    #[track_caller]
    pub(crate) fn wait_until_stopped(self) {
        wait::until("the process to be stopped", || match self.stat() {
            Some(now) if now.state == 'T' => Ok(()),
            Some(now) => Err(format!("{self:?} is in state {}", now.state)),
            None => Err(format!("{self:?} is gone")),
        });
    }

    /// Sends a signal to the process alone.
    #[track_caller]
    pub(crate) fn signal(self, signal: Signal) {
        assert!(self.stat().is_some(), "{self:?} is gone before {signal}");
        kill(Pid::from_raw(self.pid), signal).expect("the process can be signalled");
    }

    /// Kills the process and its group, if it is still there: the last resort
    /// of a test that failed, so nothing is asked and nothing is told.
    pub(crate) fn destroy(self) {
        if let Some(now) = self.stat() {
            if now.group == self.pid {
                killpg(Pid::from_raw(self.pid), Signal::SIGKILL).ok();
            }
            kill(Pid::from_raw(self.pid), Signal::SIGKILL).ok();
        }
    }
}
