//! The terminal's foreground, which the job has while it runs if dblock had
//! it.
//!
//! A process group in the background is stopped when it reads the terminal
//! (SIGTTIN), so the job's group must be in the foreground; what the keyboard
//! sends then reaches the job and not dblock. In a pipeline the job has it only
//! from the moment it needs it, because others in the pipeline may need it too.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::killpg;
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
#[derive(Debug)]
pub struct Terminal {
    tty: File,
}

impl Terminal {
    /// Returns the controlling terminal, if there is one.
    #[must_use]
    pub fn open() -> Option<Self> {
        let tty = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOCTTY)
            .open("/dev/tty")
            .ok()?;
        Some(Self { tty })
    }

    /// Tells whether a process group is in the foreground.
    #[must_use]
    pub fn is_in_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Puts a group into the foreground if this process's own is there.
    /// Returns whether it was.
    pub fn hand_over(&self, group: Pid) -> bool {
        // It fails only if the terminal is gone, and then nobody misses it.
        self.is_in_foreground(getpgrp()) && tcsetpgrp(&self.tty, group).is_ok()
    }

    /// Takes the foreground back if a job's group has it, or a group that is
    /// gone, such as one that the job had made. A shell that has put dblock
    /// into the background keeps it. Works from the background, because SIGTTOU
    /// is ignored.
    pub fn take_back(&self, job: Option<Pid>) {
        let Ok(group) = tcgetpgrp(&self.tty) else {
            return;
        };
        if Some(group) == job || killpg(group, None) == Err(Errno::ESRCH) {
            tcsetpgrp(&self.tty, getpgrp()).ok();
        }
    }
}

/// Tells whether this process stands in a pipeline, where somebody else may
/// read the terminal: a pager behind it, or a menu before it.
#[must_use]
pub fn in_pipeline() -> bool {
    let is_pipe = |stream: BorrowedFd<'_>| {
        fstat(stream).is_ok_and(|facts| {
            let kind = SFlag::from_bits_truncate(facts.st_mode) & SFlag::S_IFMT;
            // Some shells make their pipes of sockets.
            kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK
        })
    };
    is_pipe(io::stdin().as_fd()) || is_pipe(io::stdout().as_fd())
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tty.as_fd()
    }
}
