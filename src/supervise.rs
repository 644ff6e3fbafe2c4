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

use crate::clock::Tick;
use crate::keeper::Reply;
use crate::lease::Timeline;
use crate::lock::Holder;
use crate::signals::Sig;
use crate::store::{Released, Renewed, StoreError};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this status.
    Exited(u8),
    /// By the signal with this number.
    Signaled(i32),
}

/// Why a job did not start, in words, and the status that tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFault {
    /// Whether the command was not found at all; otherwise it cannot be
    /// executed.
    pub not_found: bool,
    /// What to tell, naming the command.
    pub text: String,
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
    /// The job could not be started.
    NotStarted(StartFault),
    /// The terminal stopped the job.
    JobStopped,
    /// The job's first process ended; others of its group may live.
    JobEnded(Ended),
    /// No process of the job is left.
    JobGone,
    /// The moment of [`Supervisor::wake_at`] has come.
    Timer,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the job, and report [`Event::Started`] or [`Event::NotStarted`].
    Start,
    /// Ask the keeper to renew.
    Renew,
    /// Ask the keeper to release.
    Release,
    /// Pass a signal on to the job.
    Forward(Sig),
    /// Ask the job to end.
    Terminate,
    /// Kill what is left of the job.
    Kill,
    /// Stop dblock itself, as its job was stopped.
    StopSelf,
    /// Let the stopped job go on.
    Resume,
    /// Tell people.
    Say(Note),
    /// It is over.
    Finish(Outcome),
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
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The job ended by itself, or by a signal that was passed on.
    Ended(Ended),
    /// The lease was lost and the job was stopped.
    Lost(Loss, Ended),
    /// The job took longer than it may and was stopped.
    Timeout(Ended),
    /// The job could not be started.
    NotStarted(StartFault),
    /// A signal came before the job was started.
    Interrupted(Sig),
    /// The lease could not be proven, so the job was not started.
    Unproven(String),
}

/// Why the job is being stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    Signal,
    Timeout,
    Lost(Loss),
}

#[derive(Debug)]
struct Ending {
    why: Why,
    kill_at: Tick,
}

/// Pause between kills while something is left: a process may fork while its
/// group is being killed.
const KILL_AGAIN: Duration = Duration::from_millis(50);

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
    give_up: Tick,
    retry_at: Option<Tick>,
    /// Whether an earlier attempt may have worked.
    doubtful: bool,
}

/// The state of a run.
#[derive(Debug)]
pub struct Supervisor {
    line: Timeline,
    timeout: Option<Duration>,
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
    /// The job is stopped by the terminal, and so is dblock.
    suspended: bool,
}

impl Supervisor {
    /// Returns the machine for a lease whose request was sent at `sent`, and
    /// its first actions. `timeout` is how long the job may run.
    #[must_use]
    pub fn begin(
        line: Timeline,
        timeout: Option<Duration>,
        sent: Tick,
        now: Tick,
    ) -> (Self, Vec<Action>) {
        let mut machine = Self {
            line,
            timeout,
            phase: Phase::Proving,
            sent,
            renew_at: Some(line.renew_at(sent)),
            lost: false,
            failures: 0,
            last_error: None,
            timeout_at: None,
            ended: None,
            suspended: false,
        };
        let first = if line.may_start(sent, now) {
            machine.phase = Phase::Running(None);
            Action::Start
        } else {
            machine.renew_at = None;
            Action::Renew
        };
        (machine, vec![first])
    }

    /// Returns when [`Event::Timer`] is due at the latest.
    #[must_use]
    pub fn wake_at(&self) -> Option<Tick> {
        let mut moments = [None; 4];
        match &self.phase {
            Phase::Proving => moments[0] = Some(self.line.kill_at(self.sent)),
            Phase::Running(ending) => {
                moments[0] = self.renew_at;
                match ending {
                    Some(ending) => {
                        moments[1] = Some(ending.kill_at);
                        if !matches!(ending.why, Why::Lost(_)) {
                            moments[2] = Some(self.line.term_at(self.sent));
                        }
                    }
                    None => {
                        moments[1] = self.timeout_at;
                        moments[2] = Some(self.line.term_at(self.sent));
                    }
                }
            }
            Phase::Releasing(releasing) => {
                moments[0] = Some(releasing.give_up);
                moments[1] = releasing.retry_at;
            }
            Phase::Done => {}
        }
        moments.into_iter().flatten().min()
    }

    /// Takes note of an event, and returns what is to be done.
    #[must_use]
    pub fn step(&mut self, event: Event, now: Tick) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Phase::Done = self.phase {
            return actions;
        }
        match event {
            Event::Signal(sig) => self.signal(sig, now, &mut actions),
            Event::Answer(sent, reply) => self.answer(sent, reply, now, &mut actions),
            Event::Started => self.timeout_at = self.timeout.map(|length| now + length),
            Event::NotStarted(fault) => {
                self.release(Outcome::NotStarted(fault), now, &mut actions);
            }
            Event::JobStopped => {
                if let Phase::Running(None) = self.phase {
                    self.suspended = true;
                    actions.push(Action::StopSelf);
                }
            }
            Event::JobEnded(ended) => self.ended = Some(ended),
            Event::JobGone => self.gone(now, &mut actions),
            Event::Timer => {}
        }
        self.due(now, &mut actions);
        actions
    }

    fn signal(&mut self, sig: Sig, now: Tick, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Proving if sig.ends_by_default() => {
                self.release(Outcome::Interrupted(sig), now, actions);
            }
            Phase::Running(_) if sig == Sig::Cont && self.suspended => {
                // The lease is proven before the job runs on.
                if self.renew_at.take().is_some() {
                    actions.push(Action::Renew);
                }
            }
            Phase::Running(ending) => {
                actions.push(Action::Forward(sig));
                if sig.asks_to_stop() {
                    match ending {
                        Some(ending) => {
                            let half = now + (ending.kill_at - now) / 2;
                            ending.kill_at = ending.kill_at.min(half);
                        }
                        None => {
                            *ending = Some(Ending {
                                why: Why::Signal,
                                kill_at: now + self.line.grace(),
                            });
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
            Reply::Acquired(_) | Reply::Looked(_) | Reply::Forgot(_) => {}
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
        match &self.phase {
            Phase::Proving => {
                if self.line.may_start(self.sent, now) {
                    self.phase = Phase::Running(None);
                    actions.push(Action::Start);
                } else {
                    let why = format!(
                        "the database took {} to answer, too long for this TTL",
                        humantime::format_duration(now - sent)
                    );
                    self.release(Outcome::Unproven(why), now, actions);
                }
            }
            Phase::Running(None) if self.suspended => {
                self.suspended = false;
                actions.push(Action::Resume);
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
        if !matches!(loss, Loss::Late(_)) {
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
                // A stopped job must not run another instruction.
                if self.suspended || matches!(loss, Loss::Late(_)) && own <= now {
                    kill_at = now;
                }
                if let Some(before) = &*ending {
                    kill_at = kill_at.min(before.kill_at);
                }
                actions.push(Action::Say(Note::Stopping(loss.clone())));
                if kill_at > now {
                    actions.push(Action::Terminate);
                }
                *ending = Some(Ending {
                    why: Why::Lost(loss),
                    kill_at,
                });
            }
            Phase::Releasing(_) => {
                if let Loss::Answered(rows) = loss {
                    actions.push(Action::Say(Note::LostBefore(rows)));
                }
            }
            Phase::Done => {}
        }
    }

    /// No process of the job is left.
    fn gone(&mut self, now: Tick, actions: &mut Vec<Action>) {
        let Phase::Running(ending) = &mut self.phase else {
            return;
        };
        let ended = self.ended.unwrap_or(Ended::Exited(0));
        let outcome = match ending.take().map(|ending| ending.why) {
            None | Some(Why::Signal) => Outcome::Ended(ended),
            Some(Why::Timeout) => Outcome::Timeout(ended),
            Some(Why::Lost(loss)) => Outcome::Lost(loss, ended),
        };
        self.release(outcome, now, actions);
    }

    fn release(&mut self, outcome: Outcome, now: Tick, actions: &mut Vec<Action>) {
        self.renew_at = None;
        self.phase = Phase::Releasing(Releasing {
            outcome,
            give_up: now + self.line.call_limit() * 2,
            retry_at: None,
            doubtful: false,
        });
        if self.lost {
            self.finish(actions);
        } else {
            actions.push(Action::Release);
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
                if error.may_pass() {
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
            actions.push(Action::Finish(releasing.outcome));
        }
    }

    /// Does what is due by the clock.
    fn due(&mut self, now: Tick, actions: &mut Vec<Action>) {
        if let Phase::Proving = self.phase
            && now >= self.line.kill_at(self.sent)
        {
            let why = self
                .last_error
                .clone()
                .unwrap_or_else(|| "the database did not answer in time for this TTL".to_owned());
            self.release(Outcome::Unproven(why), now, actions);
        }
        if let Phase::Running(ending) = &self.phase {
            let known = ending
                .as_ref()
                .is_some_and(|ending| matches!(ending.why, Why::Lost(_)));
            let stopping = ending.is_some();
            if !known && now >= self.line.term_at(self.sent) {
                self.lost(Loss::Late(self.last_error.clone()), now, actions);
            } else if !stopping && self.timeout_at.is_some_and(|moment| now >= moment) {
                actions.push(Action::Terminate);
                self.phase = Phase::Running(Some(Ending {
                    why: Why::Timeout,
                    kill_at: now + self.line.grace(),
                }));
            }
        }
        if let Phase::Running(ending) = &mut self.phase {
            if let Some(ending) = ending
                && now >= ending.kill_at
            {
                actions.push(Action::Kill);
                ending.kill_at = now + KILL_AGAIN;
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
                actions.push(Action::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests;
