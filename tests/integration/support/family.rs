//! All processes of one call, found by a mark in their environment: also
//! those that have left their group, their session and their parents.

use std::fmt;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::dblock::{Dblock, PROGRAM};
use super::process::Process;
use super::wait;

/// The variable that carries the mark.
const VARIABLE: &str = "FAMILY_OF_A_TEST";

/// The name that the guard gives itself.
const GUARD: &str = "dblock-guard";

/// How soon a job must be dead after SIGKILL to whoever looks after it.
pub(crate) const A_SECOND: Duration = Duration::from_secs(1);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The processes of one call of dblock. What is left of them at the end of the
/// test is killed, however the test ends.
#[derive(Debug)]
pub(crate) struct Family {
    mark: String,
}

/// A living process of a family.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) process: Process,
    parent: i32,
    state: char,
    name: String,
    command: String,
    is_dblock: bool,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            process,
            parent,
            state,
            name,
            command,
            ..
        } = self;
        let pid = process.pid();
        write!(
            f,
            "[{pid} {state} {name} of {parent}: {}]",
            command.escape_debug()
        )
    }
}

impl Family {
    /// Returns a family that has no members yet.
    pub(crate) fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{VARIABLE}={}-{number}.", std::process::id());
        Self { mark }
    }

    /// Returns the mark, as an argument of env(1).
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// Marks a call, so that it and all that it starts belong to this family.
    pub(crate) fn of(&self, call: Dblock) -> Dblock {
        let (name, value) = self.mark.split_once('=').expect("it is an assignment");
        call.env(name, value)
    }

    /// Returns all living members, dblock's own processes included.
    ///
    /// A process that is in the middle of execve(2) may be overlooked, which
    /// nothing can do to a process that has ended.
    pub(crate) fn all(&self) -> Vec<Member> {
        let entries = fs::read_dir("/proc").expect("the kernel shows processes");
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|pid| self.member(pid))
            .collect()
    }

    fn member(&self, pid: i32) -> Option<Member> {
        // In this order, so that all that is read is of the process whose
        // moment of start was taken first.
        let process = Process::of(pid)?;
        let place = Path::new("/proc").join(pid.to_string());
        let environment = fs::read(place.join("environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        if !variables.any(|variable| variable == self.mark.as_bytes()) {
            return None;
        }
        let (state, parent) = state_and_parent(&place)?;
        let command = fs::read(place.join("cmdline")).ok()?;
        let program = fs::read_link(place.join("exe")).unwrap_or_default();
        // The tests may be running when the program is built anew.
        let program = program.to_string_lossy();
        let program = program.strip_suffix(" (deleted)").unwrap_or(&program);
        let own = fs::canonicalize(PROGRAM).is_ok_and(|own| own.to_str() == Some(program));
        let member = Member {
            process,
            parent,
            state,
            name: fs::read_to_string(place.join("comm")).ok()?.trim().into(),
            command: String::from_utf8_lossy(&command)
                .trim_end_matches('\0')
                .chars()
                .take(60)
                .collect::<String>()
                .replace('\0', " "),
            is_dblock: own || program == PROGRAM,
        };
        process.is_alive().then_some(member)
    }

    /// Returns the living processes of the job.
    pub(crate) fn job(&self) -> Vec<Member> {
        let mut all = self.all();
        all.retain(|member| !member.is_dblock);
        all
    }

    /// Returns dblock's own living processes: itself and its guard.
    pub(crate) fn own(&self) -> Vec<Member> {
        let mut all = self.all();
        all.retain(|member| member.is_dblock);
        all
    }

    /// Returns the guard of the dblock with this pid, if there is one yet.
    pub(crate) fn find_guard(&self, dblock: u32) -> Option<Process> {
        let dblock = i32::try_from(dblock).expect("a pid fits");
        let own = self.own();
        // The spare stands between the two.
        let spare = own.iter().find(|member| member.parent == dblock)?;
        let mut guards = own.iter().filter(|member| member.name == GUARD);
        let guard = guards.find(|member| member.parent == spare.process.pid())?;
        Some(guard.process)
    }

    /// Waits for the guard of the dblock with this pid.
    #[track_caller]
    pub(crate) fn guard(&self, dblock: u32) -> Process {
        wait::until("the guard", || {
            self.find_guard(dblock)
                .ok_or_else(|| format!("{dblock} has none: {:?}", self.all()))
        })
    }

    /// Waits until no process of the job is alive, and returns how long that
    /// took.
    #[track_caller]
    pub(crate) fn dies_within(&self, limit: Duration) -> Duration {
        let begin = Instant::now();
        wait::within(limit, "the job's processes to die", || {
            let took = begin.elapsed();
            nobody(self.job()).map(|()| took)
        })
    }

    /// Waits until dblock's own processes are gone as well.
    #[track_caller]
    pub(crate) fn vanishes(&self) {
        wait::until("all of dblock's processes to end", || nobody(self.all()));
    }

    /// Fails if a process of the job is alive.
    #[track_caller]
    pub(crate) fn assert_dead(&self) {
        let left = self.job();
        assert!(left.is_empty(), "alive: {left:?}");
    }

    /// Fails if any process is alive, also one of dblock's.
    #[track_caller]
    pub(crate) fn assert_gone(&self) {
        let left = self.all();
        assert!(left.is_empty(), "alive: {left:?}");
    }

    /// Kills all members, until there are none left.
    fn destroy(&self) {
        let limit = Instant::now() + wait::LIMIT;
        loop {
            let left = self.all();
            if left.is_empty() || Instant::now() > limit {
                return;
            }
            for member in left {
                if member.process.is_alive() {
                    kill(Pid::from_raw(member.process.pid()), Signal::SIGKILL).ok();
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.destroy();
    }
}

fn nobody(left: Vec<Member>) -> Result<(), String> {
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("{left:?}"))
    }
}

fn state_and_parent(place: &Path) -> Option<(char, i32)> {
    let stat = fs::read_to_string(place.join("stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// Returns the children of a process that have ended and are not reaped.
pub(crate) fn zombies_of(parent: Process) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("the kernel shows processes");
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let place = Path::new("/proc").join(pid.to_string());
        state_and_parent(&place) == Some(('Z', parent.pid()))
    })
    .collect()
}

/// Returns a number of the line `NAME:` in `/proc/PID/status`.
pub(crate) fn status_field(process: Process, name: &str) -> Option<String> {
    let mut text = String::new();
    fs::File::open(format!("/proc/{}/status", process.pid()))
        .ok()?
        .read_to_string(&mut text)
        .ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(found, _)| *found == name)?;
    Some(value.trim().to_owned())
}
