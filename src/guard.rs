//! The guard: a small process between dblock and its job, and a dead man's
//! switch.
//!
//! It is the job's parent and subreaper, so it can find and kill every process
//! of the job, and it does so as soon as dblock is gone (the socket between
//! them is closed by the kernel) or the deadline has passed that dblock told
//! it last. In the other direction dblock, also a subreaper, inherits the
//! job's processes if the guard dies, and kills them. So there is no moment
//! without somebody who watches the job, whoever is killed, stopped or stuck.
//!
//! Between the two stands a spare, which does nothing as long as the guard
//! lives: if both dblock and the guard are killed, one right after the other,
//! the job's processes are the spare's, and it kills them.
//!
//! Both are forked from dblock before there is any thread, which makes each a
//! whole process that may do anything, and before the lock is asked for, so
//! that a system without a process to give refuses before anybody is granted
//! anything. Each has a process group of its own, so that a signal to dblock's
//! group does not reach it, and blocks all signals.
//!
//! This module must not know leases: a deadline is a moment to it.

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::stat::Mode;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, setpgid};
use serde::{Deserialize, Serialize};

use crate::child::{Change, Job, JobSpec};
use crate::clock::{self, Tick};
use crate::signals::{self, Inherited, Sig};
use crate::supervise::{Ended, Scope, StartFault};
use crate::tree::{self, Entry, Fate, Question};

/// What dblock tells the guard.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Start the job, with these variables, under this deadline.
    Start {
        set: Vec<(String, String)>,
        deadline: Duration,
    },
    /// The lease was renewed: the deadline is later now.
    Deadline(Duration),
    /// Pass a signal on.
    Forward(i32),
    /// Ask the group or the whole tree to end.
    Terminate { group_only: bool },
    /// Kill the group or the whole tree, until nothing is left of it.
    Kill { group_only: bool },
    /// Name those who keep the job from being gone.
    Name,
    /// There is nothing left to guard.
    Leave,
}

/// What the guard tells dblock.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub enum Report {
    /// The guard is on its post.
    Ready,
    /// The job was started; the number of its first process.
    Started(i32),
    /// The job could not be started.
    NotStarted(StartFault),
    /// A signal of job control stopped the job.
    Stopped(i32),
    /// The job's first process ended.
    Ended(Ended),
    /// Others of its group live on.
    Left,
    /// The deadline has passed, and the job is being killed.
    Expired,
    /// The processes that are left of the job.
    Survivors(Vec<i32>),
    /// Nothing of the job is left.
    Gone,
    /// The guard itself is gone.
    Dead,
}

/// Longest message, in bytes.
const MESSAGE_MAX: usize = 16 << 10;
/// Pause between kills, and between looks at what is left: short at first,
/// because the guard itself may be killed next.
const KILL_AGAIN: Duration = Duration::from_millis(1);
/// Kills in a row before the first pause.
const KILL_ROUNDS: u32 = 20;
/// Pause between looks at a group whose first process has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long the guard may take to come to its post, in milliseconds.
const READY: u16 = 5000;
/// How long dblock waits for the guard to end when all is done.
const FAREWELL: Duration = Duration::from_millis(200);

/// dblock's end of the guard.
#[derive(Debug)]
pub struct Guard {
    /// The spare, which is dblock's child and the guard's parent.
    pid: Pid,
    socket: OwnedFd,
    /// The guard has died, and its job's processes are ours.
    adopted: bool,
    /// The guard was told to start the job.
    started: bool,
    leader: Option<Pid>,
    ended: bool,
    gone: bool,
    /// Children that this process had before, from a program that it was
    /// executed in the place of. They are none of the job's.
    strangers: Vec<Pid>,
    /// When a kill was first ordered that has not been answered since.
    unanswered: Option<Tick>,
}

impl Guard {
    /// Forks the guard of a job. Must be called while there is one thread, and
    /// before signal handlers are installed.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no process or socket to give.
    #[expect(
        unsafe_code,
        reason = "fork is unsafe where there are several threads, and here is one"
    )]
    pub fn fork(spec: impl FnOnce(Inherited) -> JobSpec) -> io::Result<Self> {
        let strangers = tree::children(getpid());
        nix::sys::prctl::set_child_subreaper(true)?;
        let (own, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        // No signal may hit the guard before it has blocked them itself.
        let mut mask = SigSet::empty();
        sigprocmask(
            SigmaskHow::SIG_SETMASK,
            Some(&SigSet::all()),
            Some(&mut mask),
        )?;
        let inherited = Inherited::now(mask);
        // SAFETY: there is no other thread whose locks the child could miss.
        let forked = unsafe { fork() };
        match forked {
            Ok(ForkResult::Child) => {
                drop(own);
                let spec = spec(inherited);
                // Nothing of dblock's may run in this process after the end.
                let done = catch_unwind(AssertUnwindSafe(|| {
                    settle("dblock-spare")?;
                    // SAFETY: as above, there is no other thread.
                    match unsafe { fork() }? {
                        ForkResult::Child => Watch::begin(theirs, spec)?.serve(),
                        ForkResult::Parent { child } => {
                            drop(theirs);
                            stand_behind(child);
                            Ok(())
                        }
                    }
                }));
                let status = i32::from(!matches!(done, Ok(Ok(()))));
                // SAFETY: ends the process without running dblock's clean-up.
                unsafe { libc::_exit(status) }
            }
            Ok(ForkResult::Parent { child }) => {
                sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
                Ok(Self {
                    pid: child,
                    socket: own,
                    adopted: false,
                    started: false,
                    leader: None,
                    ended: false,
                    gone: false,
                    strangers,
                    unanswered: None,
                })
            }
            Err(error) => {
                sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
                Err(error.into())
            }
        }
    }

    /// Waits until the guard is on its post.
    ///
    /// # Errors
    ///
    /// Returns an error if the system had no process for it.
    pub fn confirm(&mut self) -> io::Result<()> {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        // A signal that comes meanwhile is heard of later.
        while poll(&mut fds, PollTimeout::from(READY)) == Err(Errno::EINTR) {}
        match receive(&self.socket) {
            Ok(Some(Report::Ready)) => Ok(()),
            _ => Err(io::Error::other("it did not come to its post")),
        }
    }

    /// Has the job started. It is killed at `deadline` unless a later one is
    /// told in time.
    pub fn start(&mut self, set: Vec<(String, String)>, deadline: Tick) {
        self.started = true;
        let deadline = deadline.since_boot();
        self.order(&Order::Start { set, deadline });
    }

    /// Tells a later deadline.
    pub fn extend(&mut self, deadline: Tick) {
        self.order(&Order::Deadline(deadline.since_boot()));
    }

    /// Passes a signal on to the job.
    pub fn forward(&mut self, sig: Sig) {
        self.order(&Order::Forward(sig.number()));
    }

    /// Asks processes of the job to end.
    pub fn terminate(&mut self, scope: Scope) {
        self.order(&Order::Terminate {
            group_only: scope == Scope::Group,
        });
    }

    /// Asks for [`Report::Survivors`].
    pub fn name_survivors(&mut self) {
        self.order(&Order::Name);
    }

    /// Has processes of the job killed until none is left. A guard that does
    /// not answer within `patience` is killed too, and the job's processes are
    /// then ours to kill.
    pub fn kill(&mut self, scope: Scope, patience: Duration) {
        if self.adopted {
            self.kill_adopted();
            return;
        }
        self.order(&Order::Kill {
            group_only: scope == Scope::Group,
        });
        let now = clock::now();
        let since = *self.unanswered.get_or_insert(now);
        if now - since > patience {
            self.kill_adopted();
        }
    }

    /// Returns the job's first process.
    #[must_use]
    pub fn leader(&self) -> Option<Pid> {
        self.leader
    }

    /// Tells whether the job's end must be looked for now and then, because
    /// nobody else does.
    #[must_use]
    pub fn must_look(&self) -> bool {
        self.adopted && !self.gone
    }

    /// Returns what the guard has told since the last call, or what has become
    /// of the job's processes if it is dead. To be called when the socket is
    /// readable and after SIGCHLD.
    pub fn reports(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        self.wake();
        if !self.adopted {
            loop {
                match receive(&self.socket) {
                    Ok(Some(report)) => {
                        self.unanswered = None;
                        match &report {
                            Report::Started(leader) => self.leader = Some(Pid::from_raw(*leader)),
                            Report::Ended(_) => self.ended = true,
                            Report::Gone => self.gone = true,
                            _ => {}
                        }
                        reports.push(report);
                    }
                    Ok(None) => {
                        self.adopted = true;
                        if !self.gone {
                            self.kill_adopted();
                            reports.push(Report::Dead);
                        }
                        break;
                    }
                    // Nothing more for now.
                    Err(_) => break,
                }
            }
        }
        if self.adopted && !self.gone {
            self.look_at_adopted(&mut reports);
        }
        reports
    }

    /// Lets the guard end, and what the job has left behind live on.
    pub fn dismiss(mut self) {
        self.let_end();
    }

    fn let_end(&mut self) {
        self.order(&Order::Leave);
        let limit = clock::now() + FAREWELL;
        while !self.adopted && clock::now() < limit {
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(20u8)).ok();
            if matches!(receive::<Report>(&self.socket), Ok(None)) {
                break;
            }
        }
        // Its end of the socket is closed a moment before it is dead, and the
        // spare ends behind it.
        let ended = tree::await_end(self.pid, limit - clock::now());
        tree::ask(self.pid, Question::Reap).ok();
        if !ended {
            self.end_by_force();
            tree::ask(self.pid, Question::Reap).ok();
        }
    }

    /// Ends a guard that does not end by itself, and its spare before it, which
    /// would take the guard's end for the end of all.
    fn end_by_force(&self) {
        let guards = tree::children(self.pid);
        for pid in [self.pid].into_iter().chain(guards) {
            if let Some(entry) = Entry::of(pid) {
                tree::signal(&entry, libc::SIGKILL).ok();
            }
        }
    }

    /// A spare that somebody has stopped is of no use: it is continued, as the
    /// guard is by the spare.
    fn wake(&self) {
        if let Ok(Some(Fate::Stopped(_))) = tree::ask(self.pid, Question::Stopped) {
            kill(self.pid, Signal::SIGCONT).ok();
        }
    }

    fn look_at_adopted(&mut self, reports: &mut Vec<Report>) {
        self.kill_adopted();
        // Reaps what has been killed, the guard among it.
        for child in self.adopted_children() {
            if let Ok(Some(Fate::Ended(ended))) = tree::ask(child, Question::Reap)
                && Some(child) == self.leader
                && !self.ended
            {
                self.ended = true;
                reports.push(Report::Ended(ended));
            }
        }
        if self.adopted_children().is_empty() {
            self.gone = true;
            if !self.ended {
                reports.push(Report::Ended(Ended::Signaled(libc::SIGKILL)));
            }
            reports.push(Report::Gone);
        } else {
            let left = tree::descendants(&self.strangers);
            let left = left.iter().map(|entry| entry.pid.as_raw()).collect();
            reports.push(Report::Survivors(left));
        }
    }

    fn adopted_children(&self) -> Vec<Pid> {
        let mut children = tree::children(getpid());
        children.retain(|child| !self.strangers.contains(child));
        children
    }

    /// Kills every process below this one. The guard is among them if it
    /// lives. What hung below the guard changes its parent when the guard is
    /// dead, and a search at that moment may miss it; so it is repeated at
    /// once, because dblock itself may be killed next.
    fn kill_adopted(&self) {
        for _ in 0..KILL_ROUNDS {
            let settled = Entry::of(self.pid).is_none_or(|spare| spare.is_dead());
            let found = tree::descendants(&self.strangers);
            // The spare does the same, and goes on if dblock is killed too.
            for entry in found.iter().filter(|entry| entry.pid != self.pid) {
                tree::signal(entry, libc::SIGKILL).ok();
            }
            if settled && found.is_empty() {
                break;
            }
        }
    }

    fn order(&mut self, order: &Order) {
        // A guard that is gone shows by the end of its socket. One that is
        // stopped has the order when it goes on; if its queue is full, the
        // next order says the same or more.
        transmit(&self.socket, order).ok();
    }
}

impl Drop for Guard {
    /// Lets a guard end that has nothing to guard. One that has a job kills it
    /// when the socket is closed: dblock cannot go on with it.
    fn drop(&mut self) {
        if !self.started {
            self.let_end();
        }
    }
}

impl AsFd for Guard {
    /// Readable when [`Guard::reports`] has something to return.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn transmit(socket: &OwnedFd, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    send(socket.as_raw_fd(), &text, flags)?;
    Ok(())
}

/// Returns the next message, or nothing if the other end is closed.
fn receive<T: for<'a> Deserialize<'a>>(socket: &OwnedFd) -> io::Result<Option<T>> {
    let mut buffer = vec![0; MESSAGE_MAX];
    match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
        Ok(0) | Err(Errno::ECONNRESET) => Ok(None),
        Ok(length) => Ok(Some(serde_json::from_slice(&buffer[..length])?)),
        Err(error) => Err(error.into()),
    }
}

/// The guard's own state.
struct Watch {
    socket: OwnedFd,
    children: SignalFd,
    timer: TimerFd,
    spec: JobSpec,
    job: Option<Job>,
    deadline: Option<Tick>,
    /// Who is to be killed until nothing is left, and since when.
    killing: Option<(Scope, Tick)>,
    ended: bool,
    /// dblock is gone.
    orphaned: bool,
}

impl Watch {
    fn begin(socket: OwnedFd, spec: JobSpec) -> io::Result<Self> {
        settle("dblock-guard")?;
        let mut only = SigSet::empty();
        only.add(Signal::SIGCHLD);
        Ok(Self {
            socket,
            children: SignalFd::with_flags(&only, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?,
            timer: TimerFd::new(
                ClockId::CLOCK_BOOTTIME,
                TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
            )?,
            spec,
            job: None,
            deadline: None,
            killing: None,
            ended: false,
            orphaned: false,
        })
    }

    /// Serves until there is nothing left to guard.
    fn serve(mut self) -> io::Result<()> {
        self.report(&Report::Ready);
        loop {
            self.wait()?;
            while let Ok(Some(_)) = self.children.read_signal() {}
            loop {
                match receive(&self.socket) {
                    Ok(Some(Order::Leave)) => return Ok(()),
                    Ok(Some(order)) => self.obey(order),
                    Ok(None) => {
                        self.orphaned = true;
                        self.kill(Scope::Tree);
                        break;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // What makes no sense is not from dblock as it should be.
                    Err(_) => {
                        self.kill(Scope::Tree);
                        break;
                    }
                }
            }
            if self.job.is_some() && self.deadline.is_some_and(|moment| clock::now() >= moment) {
                self.deadline = None;
                self.kill(Scope::Tree);
                self.report(&Report::Expired);
            }
            if self.look() && self.orphaned {
                return Ok(());
            }
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let now = clock::now();
        let look = match (&self.job, self.killing) {
            (None, _) => None,
            (_, Some((_, since))) if now - since < LOOK_AGAIN => Some(now + KILL_AGAIN),
            (_, Some(_)) => Some(now + LOOK_AGAIN),
            _ if self.ended => Some(now + LOOK_AGAIN),
            _ => None,
        };
        let deadline = self.job.as_ref().and(self.deadline);
        let until = look.into_iter().chain(deadline).min();
        match until {
            Some(moment) => self.timer.set(
                Expiration::OneShot(TimeSpec::from_duration(
                    moment.since_boot().max(Duration::from_nanos(1)),
                )),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )?,
            None => self.timer.unset()?,
        }
        // A socket whose end is reached is readable for ever.
        let listen = if self.orphaned {
            PollFlags::empty()
        } else {
            PollFlags::POLLIN
        };
        let mut fds = [
            PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.socket.as_fd(), listen),
        ];
        let watched = if self.orphaned {
            &mut fds[..2]
        } else {
            &mut fds[..]
        };
        match poll(watched, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn obey(&mut self, order: Order) {
        match (order, &mut self.job) {
            (Order::Start { set, deadline }, None) => {
                match Job::start(&self.spec, &set) {
                    Ok(job) => {
                        self.report(&Report::Started(job.leader().as_raw()));
                        self.job = Some(job);
                        self.deadline = Some(Tick::from_boot(deadline));
                        // The streams are the job's from here on: a guard that
                        // held a pipe open would keep its reader waiting.
                        let_go_of_streams();
                    }
                    Err(fault) => self.report(&Report::NotStarted(fault)),
                }
            }
            (Order::Deadline(moment), _) => self.deadline = Some(Tick::from_boot(moment)),
            (Order::Forward(number), Some(job)) => {
                if let Some(sig) = Sig::from_number(number) {
                    job.forward(sig);
                }
            }
            (Order::Terminate { group_only: true }, Some(job)) => job.terminate_group(),
            (Order::Terminate { group_only: false }, Some(job)) => job.terminate(),
            (Order::Kill { group_only }, Some(_)) => {
                self.kill(if group_only {
                    Scope::Group
                } else {
                    Scope::Tree
                });
                self.name();
            }
            (Order::Name, Some(_)) => self.name(),
            _ => {}
        }
    }

    /// Begins to kill. Who is to be killed may become more, never less.
    fn kill(&mut self, scope: Scope) {
        match &mut self.killing {
            Some((before, _)) if scope == Scope::Tree => *before = scope,
            Some(_) => {}
            None => self.killing = Some((scope, clock::now())),
        }
    }

    fn name(&self) {
        if let Some(job) = &self.job {
            let survivors = job.survivors();
            // As many as a message and a reader can take.
            let named = survivors.iter().take(100).map(|pid| pid.as_raw()).collect();
            self.report(&Report::Survivors(named));
        }
    }

    /// Looks at the job, kills it if that is due, and tells whether it is
    /// gone or was never there.
    fn look(&mut self) -> bool {
        let Some(job) = &mut self.job else {
            return true;
        };
        if let Some((scope, _)) = self.killing {
            // A process may have forked just before it was killed.
            for _ in 0..KILL_ROUNDS {
                job.kill(scope);
                if job.survivors().is_empty() {
                    break;
                }
            }
        }
        // An error of the system is no reason to lose sight of the job.
        let changes = job.changes().unwrap_or_default();
        let gone = changes.contains(&Change::Gone);
        for change in changes {
            self.report(&match change {
                Change::Stopped(number) => Report::Stopped(number),
                Change::Ended(ended) => Report::Ended(ended),
                Change::Gone => Report::Gone,
            });
            if let Change::Ended(_) = change {
                self.ended = true;
                if !gone {
                    self.report(&Report::Left);
                }
            }
        }
        if gone {
            self.job = None;
            self.killing = None;
        }
        gone
    }

    fn report(&self, report: &Report) {
        // If dblock is gone, its end of the socket says so.
        transmit(&self.socket, report).ok();
    }
}

/// Makes this process one that signals to dblock do not reach, and the one that
/// inherits what is left below it.
fn settle(name: &str) -> io::Result<()> {
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    nix::sys::prctl::set_child_subreaper(true)?;
    nix::sys::prctl::set_name(&CString::new(name)?)?;
    signals::heed_children()
}

/// The spare: waits for the guard to end, and does nothing unless the guard
/// dies of something. Then the job's processes are its own, and it kills them.
/// With it no two deaths in a row leave the job without anybody.
fn stand_behind(guard: Pid) {
    let_go_of_streams();
    loop {
        match waitpid(guard, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Exited(_, 0)) => return,
            // A guard that somebody has stopped is of no use.
            Ok(WaitStatus::Stopped(..)) => {
                kill(guard, Signal::SIGCONT).ok();
            }
            Err(Errno::EINTR) => {}
            _ => break,
        }
    }
    loop {
        for entry in tree::descendants(&[]) {
            tree::signal(&entry, libc::SIGKILL).ok();
        }
        let children = tree::children(getpid());
        if children.is_empty() {
            return;
        }
        for child in children {
            tree::ask(child, Question::Reap).ok();
        }
        poll(&mut [], PollTimeout::from(1u8)).ok();
    }
}

fn let_go_of_streams() {
    let Ok(nowhere) = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) else {
        return;
    };
    nix::unistd::dup2_stdin(&nowhere).ok();
    nix::unistd::dup2_stdout(&nowhere).ok();
    nix::unistd::dup2_stderr(&nowhere).ok();
}
