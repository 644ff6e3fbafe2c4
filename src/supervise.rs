//! The life of a run from the grant to the end: a pure state machine.
//!
//! It is told events, each with the moment on the boot-time clock, and answers
//! with the actions to carry out. It does no I/O, starts nothing and reads no
//! clock; `commands/run.rs` is its hands. What it keeps, whatever the events
//! and their order:
//!
//! - The job starts only on a lease with more than half of its TTL left.
//! - The job is asked to end, and then killed, by the moments of
//!   [`Timeline`], whether the store answers or not.
//! - The lease is released only after the last process of the job is gone.
//! - Nothing is sent to the job after that.
//! - It finishes once.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Tick;
use crate::keeper::Reply;
use crate::lease::Timeline;
use crate::lock::Holder;
use crate::signals::Sig;
use crate::store::{End, Released, Renewed, StoreError};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// With this status.
    Exited(u8),
    /// By the signal with this number.
    Signaled(i32),
}

/// Why a job did not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFault {
    /// Whose fault it is.
    pub kind: Unstarted,
    /// What to tell, naming the command.
    pub text: String,
}

/// Whose fault it is that a job did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unstarted {
    /// There is no such command.
    NotFound,
    /// The command cannot be executed.
    NotExecutable,
    /// The system has no process to give.
    NoProcess,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A signal reached dblock.
    Signal(Sig),
    /// The keeper answered a call that was sent at the moment given.
    Answer(Tick, Reply),
    /// The job was started.
    Started,
    /// The job has the terminal's foreground from here on: what the keyboard
    /// sends reaches the job and not dblock.
    HasForeground,
    /// The job could not be started.
    NotStarted(StartFault),
    /// A signal of job control with this number stopped the job.
    JobStopped(i32),
    /// The job's first process ended.
    JobEnded(Ended),
    /// Others of its group live on.
    JobLeft,
    /// The guard kills the job, because no later deadline was told in time.
    GuardExpired,
    /// The guard died, and what is left of the job is being killed.
    GuardDied,
    /// No process of the job is left.
    JobGone,
    /// The moment of [`Supervisor::wake_at`] has come.
    Timer,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the job under this deadline, and report [`Event::Started`] or
    /// [`Event::NotStarted`].
    Start(Tick),
    /// Tell the guard a later deadline.
    Extend(Tick),
    /// Ask the keeper to renew.
    Renew,
    /// Ask the keeper to release.
    Release(End),
    /// Pass a signal on to the job.
    Forward(Sig),
    /// Ask processes of the job to end.
    Terminate(Scope),
    /// Kill what is left of the job.
    Kill(Scope),
    /// Tell people which processes are left.
    Name(Naming),
    /// Stop dblock itself by the signal that stopped its job.
    StopSelf(i32),
    /// Stop dblock and what surrounds it in its process group, as the
    /// keyboard would have.
    StopGroup(i32),
    /// Send what surrounds dblock the signal that the keyboard sent the job.
    SignalGroup(i32),
    /// Let the stopped job go on.
    Resume,
    /// Tell people.
    Say(Note),
    /// It is over.
    Finish(Outcome),
}

/// Who is asked to end, or killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The job's process group.
    Group,
    /// Every process of the job.
    Tree,
}

/// Why processes are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The job's first process has ended, and these keep the lock.
    Leftovers,
    /// These could not be killed.
    Unkillable,
}

/// What to do with processes that the job leaves in its own process group when
/// its first process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// Keep the lock until they end.
    Wait,
    /// End them.
    Kill,
    /// Free the lock, and let them be.
    Leave,
}

/// What is fixed before a run begins.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The lease's timeline.
    pub line: Timeline,
    /// How long the job may take.
    pub timeout: Option<Duration>,
    /// What to do with what the job leaves behind.
    pub leftovers: Leftovers,
    /// Leave the row of a lost lease where it is, because others are to wait
    /// for longer.
    pub delays_after_loss: bool,
}

/// Something that people may want to know.
#[derive(Debug, PartialEq, Eq)]
pub enum Note {
    /// The lease was renewed; the answer took this long.
    Renewed(Duration),
    /// A renewal failed, once.
    RenewalFailed(String),
    /// Renewals keep failing; the job will be stopped after this time.
    RenewalsFailing(String, Duration),
    /// Renewals work again.
    Recovered,
    /// The job is being stopped because the lease is lost.
    Stopping(Loss),
    /// The job did not end in time after it was asked to, and is killed.
    Killing,
    /// The lease was already lost when the job had ended.
    LostBefore(Vec<Holder>),
    /// The lease could not be released; it expires after this time.
    NotReleased(String, Duration),
}

/// How a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The store says that it is not ours; these are the key's rows now.
    Answered(Vec<Holder>),
    /// It could not be renewed in time; the last error, if there was one.
    Late(Option<String>),
    /// The keeper's thread died.
    KeeperDied,
    /// The guard died.
    GuardDied,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The job ended by itself, or by a signal that was passed on.
    Ended(Ended),
    /// The lease was lost and the job was stopped; without an end if a
    /// process of it could not be killed.
    Lost(Loss, Option<Ended>),
    /// The job took longer than it may and was stopped.
    Timeout(Ended),
    /// The job could not be started.
    NotStarted(StartFault),
    /// A signal came before the job was started.
    Interrupted(Sig),
    /// The job is gone, and nobody has seen how it ended.
    Unseen,
    /// The lease could not be proven, so the job was not started.
    Unproven(String),
}

/// What the job may believe of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is held until this moment at least, whatever becomes of dblock.
    Held(Tick),
    /// It is lost, or must be taken as lost.
    Lost,
    /// The run is over, and the lease is being given back.
    Over,
}

/// Why the job is being stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    Signal,
    Leftovers,
    Timeout,
    Lost(Loss),
}

#[derive(Debug)]
struct Ending {
    why: Why,
    kill_at: Tick,
    /// When the first kill was due.
    since: Option<Tick>,
    /// Whether those who could not be killed were named.
    named: bool,
}

impl Ending {
    fn new(why: Why, kill_at: Tick) -> Self {
        Self {
            why,
            kill_at,
            since: None,
            named: false,
        }
    }

    fn is_loss(&self) -> bool {
        matches!(self.why, Why::Lost(_))
    }
}

/// Pause between kills while something is left, at first and later on.
const KILL_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long after the first kill those are named who live on.
const UNKILLABLE: Duration = Duration::from_secs(1);
/// How long after the first kill a lost run ends, whoever lives on: there is
/// no lease to keep for them any more.
const HOPELESS: Duration = Duration::from_secs(5);
/// How long the guard may take to answer after a loss, and otherwise.
const GUARD_PATIENCE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// A deadline for what nobody waits for any more.
const A_DAY: Duration = Duration::from_secs(86_400);
/// How long a stop that was passed on may take to stop the job.
const STOP_TAKES: Duration = Duration::from_secs(1);
/// How long the row of a lost lease is tried to be deleted.
const LOST_PATIENCE: Duration = Duration::from_secs(1);
/// How long after the end of the job's first process those are named who keep
/// the lock.
const NAME_LEFTOVERS: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Phase {
    /// The lease must be renewed once before the job may start.
    Proving,
    /// The job is being started, or lives.
    Running(Option<Ending>),
    /// The job is gone or was never there.
    Releasing(Releasing),
    /// It is over.
    Done,
}

#[derive(Debug)]
struct Releasing {
    outcome: Outcome,
    end: End,
    give_up: Tick,
    retry_at: Option<Tick>,
    /// Whether an earlier attempt may have worked.
    doubtful: bool,
}

/// The state of a run.
#[derive(Debug)]
pub struct Supervisor {
    line: Timeline,
    plan: Plan,
    phase: Phase,
    /// When the last successful acquire or renewal was sent.
    sent: Tick,
    /// When the next renewal is to be asked for; `None` while one is under
    /// way, or when the lease is known to be lost.
    renew_at: Option<Tick>,
    /// Whether the store has said, or the keeper's death means, that the
    /// lease is not ours any more.
    lost: bool,
    failures: u32,
    last_error: Option<String>,
    timeout_at: Option<Tick>,
    ended: Option<Ended>,
    /// When those are to be named who keep the lock.
    name_at: Option<Tick>,
    /// The job is stopped by the terminal, and so is dblock.
    suspended: bool,
    /// When it was last to go on.
    prove_from: Tick,
    /// The job has had the terminal's foreground.
    foreground: bool,
    /// Those of SIGINT and SIGQUIT that reached dblock itself.
    passed_on: Vec<Sig>,
    /// When SIGTSTP last reached dblock itself.
    stop_passed_on: Option<Tick>,
    /// Until when the lease must be proven before the job may start.
    prove_by: Tick,
}

impl Supervisor {
    /// Returns the machine for a lease whose request was sent at `sent`, and
    /// its first actions.
    #[must_use]
    pub fn begin(plan: Plan, sent: Tick, now: Tick) -> (Self, Vec<Action>) {
        let line = plan.line;
        let mut machine = Self {
            line,
            plan,
            phase: Phase::Proving,
            sent,
            renew_at: Some(line.renew_at(sent)),
            lost: false,
            failures: 0,
            last_error: None,
            timeout_at: None,
            ended: None,
            name_at: None,
            suspended: false,
            prove_from: sent,
            foreground: false,
            passed_on: Vec::new(),
            stop_passed_on: None,
            prove_by: now + line.call_limit(),
        };
        let first = if line.may_start(sent, now) {
            machine.phase = Phase::Running(None);
            Action::Start(line.kill_at(sent))
        } else {
            machine.renew_at = None;
            Action::Renew
        };
        (machine, vec![first])
    }

    /// Returns what the job may believe of its lease. To be made known before
    /// the actions of a step are carried out: a job that is asked to end, or
    /// that goes on, must not find what was true before.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let lost = match &self.phase {
            Phase::Proving | Phase::Running(None) => self.lost,
            Phase::Running(Some(ending)) => self.lost || ending.is_loss(),
            Phase::Releasing(releasing) => {
                if !matches!(releasing.outcome, Outcome::Lost(..)) {
                    return Standing::Over;
                }
                true
            }
            Phase::Done => return Standing::Over,
        };
        if lost {
            Standing::Lost
        } else {
            Standing::Held(self.line.expires_at(self.sent))
        }
    }

    /// Returns when [`Event::Timer`] is due at the latest.
    #[must_use]
    pub fn wake_at(&self) -> Option<Tick> {
        let mut moments = [None; 5];
        match &self.phase {
            Phase::Proving => moments[0] = Some(self.prove_by),
            Phase::Running(ending) => {
                moments[0] = self.renew_at;
                moments[1] = match ending {
                    Some(ending) => Some(ending.kill_at),
                    None => self.timeout_at,
                };
                if !ending.as_ref().is_some_and(Ending::is_loss) {
                    moments[2] = Some(self.line.term_at(self.sent));
                }
                moments[3] = self.name_at;
            }
            Phase::Releasing(releasing) => {
                moments[0] = Some(releasing.give_up);
                moments[1] = releasing.retry_at;
            }
            Phase::Done => {}
        }
        moments.into_iter().flatten().min()
    }

    /// Returns how long the guard may take to answer an order to kill before it
    /// is killed itself: long on a busy machine, unless the lease is running
    /// out meanwhile.
    #[must_use]
    pub fn guard_patience(&self) -> Duration {
        match &self.phase {
            Phase::Running(Some(ending)) if ending.is_loss() => GUARD_PATIENCE.0,
            _ => GUARD_PATIENCE.1,
        }
    }

    /// Takes note of an event, and returns what is to be done.
    #[must_use]
    pub fn step(&mut self, event: Event, now: Tick) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Phase::Done = self.phase {
            return actions;
        }
        // What the guard reports has happened before it is read, perhaps long
        // before, if dblock was stopped. It must not count as a loss that the
        // end is heard of late: the rest of the report comes first.
        let is_history = matches!(event, Event::JobEnded(_));
        match event {
            Event::Signal(sig) => self.signal(sig, now, &mut actions),
            Event::Answer(sent, reply) => self.answer(sent, reply, now, &mut actions),
            Event::HasForeground => self.foreground = true,
            Event::Started => {
                self.timeout_at = self.plan.timeout.map(|length| now + length);
            }
            Event::NotStarted(fault) => {
                self.release(Outcome::NotStarted(fault), now, &mut actions);
            }
            Event::JobStopped(number) => {
                if let Phase::Running(None) = self.phase {
                    self.suspended = true;
                    // Somebody who stopped dblock alone means dblock alone.
                    let passed_on = self.stop_passed_on.take();
                    actions.push(match passed_on {
                        Some(then) if now - then < STOP_TAKES => Action::StopSelf(number),
                        _ => Action::StopGroup(number),
                    });
                }
            }
            Event::JobEnded(ended) => self.ended = Some(ended),
            Event::JobLeft => self.left(now, &mut actions),
            Event::GuardExpired => {
                self.lost(Loss::Late(self.last_error.clone()), now, &mut actions)
            }
            Event::GuardDied => self.lost(Loss::GuardDied, now, &mut actions),
            Event::JobGone => self.gone(now, &mut actions),
            Event::Timer => {}
        }
        if !is_history {
            self.due(now, &mut actions);
        }
        actions
    }

    fn signal(&mut self, sig: Sig, now: Tick, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Proving if sig.ends_by_default() => {
                self.release(Outcome::Interrupted(sig), now, actions);
            }
            Phase::Running(_) if sig == Sig::Cont && self.suspended => {
                // The lease is proven before the job runs on, by an answer to
                // a question that is asked from now on.
                self.prove_from = now;
                if self.renew_at.take().is_some() {
                    actions.push(Action::Renew);
                }
            }
            Phase::Running(ending) => {
                actions.push(Action::Forward(sig));
                match sig {
                    Sig::Tstp => self.stop_passed_on = Some(now),
                    Sig::Int | Sig::Quit if !self.passed_on.contains(&sig) => {
                        self.passed_on.push(sig);
                    }
                    _ => {}
                }
                if sig.asks_to_stop() {
                    match ending {
                        Some(ending) => {
                            let half = now + (ending.kill_at - now) / 2;
                            ending.kill_at = ending.kill_at.min(half);
                        }
                        None => {
                            *ending = Some(Ending::new(Why::Signal, now + self.line.grace()));
                        }
                    }
                }
            }
            Phase::Proving | Phase::Releasing(_) | Phase::Done => {}
        }
    }

    fn answer(&mut self, sent: Tick, reply: Reply, now: Tick, actions: &mut Vec<Action>) {
        match reply {
            Reply::Renewed(Ok(Renewed::Extended)) => self.renewed(sent, now, actions),
            Reply::Renewed(Ok(Renewed::Lost(rows))) => {
                self.lost(Loss::Answered(rows), now, actions);
            }
            Reply::Renewed(Err(error)) => self.renewal_failed(&error, now, actions),
            Reply::Released(answer) => self.released(answer, now, actions),
            Reply::Gone => match &mut self.phase {
                Phase::Releasing(_) => {
                    self.finish_unreleased("the keeper thread died", now, actions);
                }
                Phase::Done => {}
                _ => self.lost(Loss::KeeperDied, now, actions),
            },
            Reply::Acquired(_) | Reply::Looked(_) | Reply::Waited(_) | Reply::Forgot(_) => {}
        }
    }

    fn renewed(&mut self, sent: Tick, now: Tick, actions: &mut Vec<Action>) {
        self.sent = self.sent.max(sent);
        self.renew_at = Some(self.line.renew_at(self.sent).max(now));
        if self.failures > 1 {
            actions.push(Action::Say(Note::Recovered));
        }
        self.failures = 0;
        self.last_error = None;
        actions.push(Action::Say(Note::Renewed(now - sent)));
        if let Phase::Running(_) = self.phase {
            actions.push(Action::Extend(self.line.kill_at(self.sent)));
        }
        match &self.phase {
            Phase::Proving => {
                if self.line.may_start(self.sent, now) {
                    self.phase = Phase::Running(None);
                    actions.push(Action::Start(self.line.kill_at(self.sent)));
                } else {
                    let why = format!(
                        "the database took {} to answer, too long for this TTL",
                        humantime::format_duration(now - sent)
                    );
                    self.release(Outcome::Unproven(why), now, actions);
                }
            }
            Phase::Running(None) if self.suspended => {
                if sent >= self.prove_from {
                    self.suspended = false;
                    actions.push(Action::Resume);
                } else {
                    self.renew_at = None;
                    actions.push(Action::Renew);
                }
            }
            _ => {}
        }
    }

    fn renewal_failed(&mut self, error: &StoreError, now: Tick, actions: &mut Vec<Action>) {
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some(error.to_string());
        match &self.phase {
            Phase::Proving => self.release(Outcome::Unproven(error.to_string()), now, actions),
            Phase::Running(ending) => {
                // The first attempt after a loss of the connection is made at
                // once: a link that was dropped while idle is no incident.
                let pause = match self.failures {
                    1 => Duration::ZERO,
                    _ => self.line.retry_pause(),
                };
                self.renew_at = Some(now + pause);
                actions.push(Action::Say(Note::RenewalFailed(error.to_string())));
                if self.failures == 2 && ending.is_none() {
                    let left = self.line.term_at(self.sent) - now;
                    actions.push(Action::Say(Note::RenewalsFailing(error.to_string(), left)));
                }
            }
            Phase::Releasing(_) | Phase::Done => {}
        }
    }

    /// The lease is lost, or must be taken as lost.
    fn lost(&mut self, loss: Loss, now: Tick, actions: &mut Vec<Action>) {
        // Without a guard the row is still ours, and freed at the end.
        if matches!(loss, Loss::Answered(_) | Loss::KeeperDied) {
            self.lost = true;
            self.renew_at = None;
        }
        match &mut self.phase {
            Phase::Proving => {
                let why = "somebody else took the lease before the job was started";
                self.release(Outcome::Unproven(why.to_owned()), now, actions);
            }
            Phase::Running(ending) => {
                let own = self.line.kill_at(self.sent);
                let mut kill_at = now + self.line.grace();
                if own > now {
                    kill_at = kill_at.min(own);
                }
                // A stopped job must not run another instruction, and a job
                // without a guard must not run on.
                if self.suspended || matches!(loss, Loss::GuardDied) || own <= now {
                    kill_at = now;
                }
                if let Some(before) = &*ending {
                    kill_at = kill_at.min(before.kill_at);
                    if before.is_loss() {
                        return;
                    }
                }
                actions.push(Action::Say(Note::Stopping(loss.clone())));
                if kill_at > now {
                    actions.push(Action::Terminate(Scope::Tree));
                }
                *ending = Some(Ending::new(Why::Lost(loss), kill_at));
            }
            Phase::Releasing(_) => {
                if let Loss::Answered(rows) = loss {
                    actions.push(Action::Say(Note::LostBefore(rows)));
                }
            }
            Phase::Done => {}
        }
    }

    /// The first process has ended, and others of its group live on.
    fn left(&mut self, now: Tick, actions: &mut Vec<Action>) {
        if !matches!(self.phase, Phase::Running(None)) {
            return;
        }
        match self.plan.leftovers {
            Leftovers::Wait => self.name_at = Some(now + NAME_LEFTOVERS),
            Leftovers::Kill => {
                actions.push(Action::Terminate(Scope::Group));
                let ending = Ending::new(Why::Leftovers, now + self.line.grace());
                self.phase = Phase::Running(Some(ending));
            }
            Leftovers::Leave => {
                // They are on their own, however long the release takes.
                actions.push(Action::Extend(now + A_DAY));
                self.gone(now, actions);
            }
        }
    }

    /// No process of the job is left.
    fn gone(&mut self, now: Tick, actions: &mut Vec<Action>) {
        let Phase::Running(ending) = &mut self.phase else {
            return;
        };
        let outcome = match (ending.take().map(|ending| ending.why), self.ended) {
            (Some(Why::Lost(loss)), ended) => Outcome::Lost(loss, ended),
            (_, None) => Outcome::Unseen,
            (None | Some(Why::Signal | Why::Leftovers), Some(ended)) => Outcome::Ended(ended),
            (Some(Why::Timeout), Some(ended)) => Outcome::Timeout(ended),
        };
        self.release(outcome, now, actions);
    }

    /// Ends a lost run whose job cannot be killed. The row, if it is still
    /// ours, is not deleted: it expires by itself.
    fn abandon(&mut self, now: Tick, actions: &mut Vec<Action>) {
        self.lost = true;
        self.ended = None;
        self.gone(now, actions);
    }

    fn release(&mut self, outcome: Outcome, now: Tick, actions: &mut Vec<Action>) {
        self.renew_at = None;
        // Nobody waits long to be told of a loss.
        let patience = match outcome {
            Outcome::Lost(..) => self.line.call_limit().min(LOST_PATIENCE),
            _ => self.line.call_limit() * 2,
        };
        let delays = self.plan.delays_after_loss && matches!(outcome, Outcome::Lost(..));
        let end = end_of(&outcome);
        self.phase = Phase::Releasing(Releasing {
            outcome,
            end,
            give_up: now + patience,
            retry_at: None,
            doubtful: false,
        });
        if self.lost || delays {
            self.finish(actions);
        } else {
            actions.push(Action::Release(end));
        }
    }

    fn released(
        &mut self,
        answer: Result<Released, StoreError>,
        now: Tick,
        actions: &mut Vec<Action>,
    ) {
        let Phase::Releasing(releasing) = &mut self.phase else {
            return;
        };
        match answer {
            Ok(Released::Released) => self.finish(actions),
            Ok(Released::NotHeld) => {
                let known = self.lost
                    || releasing.doubtful
                    || matches!(releasing.outcome, Outcome::Lost(..));
                if !known {
                    actions.push(Action::Say(Note::LostBefore(Vec::new())));
                }
                self.finish(actions);
            }
            Err(error) => {
                self.last_error = Some(error.to_string());
                let failover = matches!(error, StoreError::ReadOnly(_));
                if error.may_pass() || failover {
                    releasing.doubtful |= error.outcome_unknown();
                    releasing.retry_at = Some(now + self.line.retry_pause());
                } else {
                    self.finish_unreleased(&error.to_string(), now, actions);
                }
            }
        }
    }

    fn finish_unreleased(&mut self, why: &str, now: Tick, actions: &mut Vec<Action>) {
        // A lease that was lost by its deadline has been told of already.
        let told = match &self.phase {
            Phase::Releasing(releasing) => matches!(releasing.outcome, Outcome::Lost(..)),
            _ => false,
        };
        let left = self.line.expires_at(self.sent) - now;
        if !told && !left.is_zero() {
            actions.push(Action::Say(Note::NotReleased(why.to_owned(), left)));
        }
        self.finish(actions);
    }

    fn finish(&mut self, actions: &mut Vec<Action>) {
        if let Phase::Releasing(releasing) = std::mem::replace(&mut self.phase, Phase::Done) {
            if let Outcome::Ended(Ended::Signaled(number)) = releasing.outcome
                && self.came_from_the_keyboard(number)
            {
                actions.push(Action::SignalGroup(number));
            }
            actions.push(Action::Finish(releasing.outcome));
        }
    }

    /// Tells whether the job died of a signal that the keyboard sends to the
    /// whole foreground, where dblock and its surroundings were not any more.
    fn came_from_the_keyboard(&self, number: i32) -> bool {
        self.foreground
            && [Sig::Int, Sig::Quit]
                .into_iter()
                .any(|sig| sig.number() == number && !self.passed_on.contains(&sig))
    }

    /// Does what is due by the clock.
    fn due(&mut self, now: Tick, actions: &mut Vec<Action>) {
        if let Phase::Proving = self.phase
            && now >= self.prove_by
        {
            let why = self
                .last_error
                .clone()
                .unwrap_or_else(|| "the database did not answer in time for this TTL".to_owned());
            self.release(Outcome::Unproven(why), now, actions);
        }
        if let Phase::Running(ending) = &self.phase {
            let stopping = ending.is_some();
            if !ending.as_ref().is_some_and(Ending::is_loss) && now >= self.line.term_at(self.sent)
            {
                self.lost(Loss::Late(self.last_error.clone()), now, actions);
            } else if !stopping && self.timeout_at.is_some_and(|moment| now >= moment) {
                actions.push(Action::Terminate(Scope::Tree));
                let ending = Ending::new(Why::Timeout, now + self.line.grace());
                self.phase = Phase::Running(Some(ending));
            }
        }
        if let Phase::Running(Some(ending)) = &mut self.phase
            && now >= ending.kill_at
        {
            let since = *ending.since.get_or_insert(now);
            let pause = if now - since < HOPELESS {
                KILL_AGAIN.0
            } else {
                KILL_AGAIN.1
            };
            ending.kill_at = now + pause;
            if since == now && matches!(ending.why, Why::Signal | Why::Leftovers) {
                actions.push(Action::Say(Note::Killing));
            }
            actions.push(Action::Kill(match ending.why {
                Why::Leftovers => Scope::Group,
                Why::Signal | Why::Timeout | Why::Lost(_) => Scope::Tree,
            }));
            if now - since >= UNKILLABLE && !ending.named {
                ending.named = true;
                actions.push(Action::Name(Naming::Unkillable));
            }
            // As long as the lease is ours it is kept, whoever lives on.
            let over = self.lost || now >= self.line.expires_at(self.sent);
            if now - since >= HOPELESS && ending.is_loss() && over {
                self.abandon(now, actions);
            }
        }
        if let Phase::Running(_) = &self.phase {
            if self.name_at.is_some_and(|moment| now >= moment) {
                self.name_at = None;
                actions.push(Action::Name(Naming::Leftovers));
            }
            if self.renew_at.is_some_and(|moment| now >= moment) {
                self.renew_at = None;
                actions.push(Action::Renew);
            }
        }
        if let Phase::Releasing(releasing) = &mut self.phase {
            if now >= releasing.give_up {
                let why = self
                    .last_error
                    .take()
                    .unwrap_or_else(|| "the database does not answer".to_owned());
                self.finish_unreleased(&why, now, actions);
            } else if releasing.retry_at.is_some_and(|moment| now >= moment) {
                releasing.retry_at = None;
                actions.push(Action::Release(releasing.end));
            }
        }
    }
}

/// Returns how a lease is given back after this. A job that never ran keeps
/// nothing shut.
fn end_of(outcome: &Outcome) -> End {
    match outcome {
        Outcome::NotStarted(_) | Outcome::Interrupted(_) | Outcome::Unproven(_) => End::Dropped,
        Outcome::Ended(Ended::Exited(0)) => End::Finished { succeeded: true },
        Outcome::Ended(_) | Outcome::Lost(..) | Outcome::Timeout(_) | Outcome::Unseen => {
            End::Finished { succeeded: false }
        }
    }
}

#[cfg(test)]
mod tests;
