//! A call of dblock that is under way.

use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::time::Instant;

use nix::sys::signal::Signal;

use super::dblock::{Call, Output};
use super::process::Process;
use super::{janitor, wait};

/// A running dblock. Whatever happens to the test, it and the processes of its
/// job that the test has heard of are killed at the end.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    process: Process,
    call: Option<Call>,
    began: Instant,
    job: Vec<Process>,
}

impl Running {
    /// Takes charge of a child that was just started.
    #[track_caller]
    pub(crate) fn new(child: Child, call: Call) -> Self {
        let began = Instant::now();
        janitor::watch(&child);
        let pid = i32::try_from(child.id()).expect("a pid fits");
        // A child that is not reaped yet keeps its number.
        let process = Process::of(pid).expect("the child is there");
        Self {
            child,
            process,
            call: Some(call),
            began,
            job: Vec::new(),
        }
    }

    fn call(&self) -> &Call {
        self.call
            .as_ref()
            .expect("the call has not been waited for")
    }

    /// Returns dblock's own process.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Returns dblock's process id as the table of locks holds it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to dblock alone.
    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until standard output has `count` whole lines, and returns them.
    #[track_caller]
    pub(crate) fn lines(&mut self, count: usize) -> Vec<String> {
        wait::until("lines on standard output", || {
            let text = self.call().scratch.written("stdout");
            let text = String::from_utf8_lossy(&text);
            if text.matches('\n').count() >= count {
                return Ok(text.lines().take(count).map(str::to_owned).collect());
            }
            Err(self.facts())
        })
    }

    /// Waits until the job has printed `count` process ids, a line each, and
    /// returns the processes. The first is the job's first process.
    #[track_caller]
    pub(crate) fn processes(&mut self, count: usize) -> Vec<Process> {
        self.job = self
            .lines(count)
            .iter()
            .map(|line| Process::printed(line))
            .collect();
        self.job.clone()
    }

    /// Waits until the job has printed its process id, and returns it.
    #[track_caller]
    pub(crate) fn job(&mut self) -> Process {
        self.processes(1)[0]
    }

    /// Returns what dblock's descriptors stand for.
    pub(crate) fn descriptors(&self) -> Vec<PathBuf> {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.pid()));
        let entries = descriptors.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .collect()
    }

    /// Fails if dblock has ended.
    #[track_caller]
    pub(crate) fn assert_running(&self) {
        assert!(self.process.is_alive(), "ended too early: {}", self.facts());
    }

    /// Returns all that is known, to be shown by a failure.
    pub(crate) fn facts(&self) -> String {
        let life = if self.process.is_alive() {
            "is running"
        } else {
            "has ended"
        };
        format!(
            "{life} after {:?}: {}",
            self.began.elapsed(),
            self.call().facts()
        )
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Output {
        let status = wait::until("dblock to end", || {
            let status = self.child.try_wait().expect("the child can be waited for");
            status.ok_or_else(|| self.facts())
        });
        let took = self.began.elapsed();
        janitor::forget(&self.child);
        let call = self.call.take().expect("the call has not been waited for");
        call.ended(status, took)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.call.is_some() {
            self.process.destroy();
            self.child.wait().ok();
            janitor::forget(&self.child);
        }
        for process in &self.job {
            process.destroy();
        }
    }
}
