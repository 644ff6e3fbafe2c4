//! The life of a lease that a program holds, from the grant to its end: a pure
//! state machine, as [`crate::supervise`] is for a lease that a job runs under.
//!
//! It is told what happened and when, and says what to do next. It does no I/O
//! and reads no clock; `client/lease.rs` is its hands. What it keeps, whatever
//! the events and their order:
//!
//! - The lease is given out only with more than half of its TTL left.
//! - It counts as lost from the moment on when a job would be asked to end
//!   ([`Timeline::term_at`]), whether the store answers or not.
//! - What is lost stays lost, also if a later renewal works.
//! - The row is kept as long as it can be until the program gives it back: who
//!   was told of a loss may still need a moment to stop.
//! - It ends once.

use std::time::Duration;

use thiserror::Error;

use crate::clock::Tick;
use crate::keeper::Reply;
use crate::lease::Timeline;
use crate::lock::{Holder, State};
use crate::store::{End, Released, Renewed, StoreError};

/// How a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Loss {
    /// The store says that the lease is not this one's any more: somebody took
    /// it away, and perhaps holds the key already. These are the key's rows.
    #[error("the lease was taken away{}", by(.0))]
    Taken(Vec<Holder>),
    /// It could not be renewed in time; the last error, if there was one.
    #[error("the lease could not be renewed in time{}", why(.0))]
    Late(Option<String>),
    /// A thread that renews it has died: a fault of dblock itself.
    #[error("the lease is not renewed any more, because a thread has died")]
    Died,
}

fn by(rows: &[Holder]) -> String {
    let holder = rows.iter().find(|row| row.state == State::Held);
    holder.map_or(String::new(), |row| {
        let claimant = &row.claimant;
        format!(
            ", {} (pid {}, {}) holds it now",
            claimant.host, claimant.pid, claimant.user
        )
    })
}

fn why(error: &Option<String>) -> String {
    error
        .as_ref()
        .map_or(String::new(), |error| format!(": {error}"))
}

/// How a lease ended.
#[derive(Debug)]
pub enum Outcome {
    /// It was given back, and was never lost.
    Released,
    /// It was lost before it was given back.
    Lost(Loss),
    /// It was held to the end and could not be given back: it expires by
    /// itself.
    NotReleased(StoreError),
    /// It was granted with too little of its TTL left, and was not given out.
    Unproven(String),
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the keeper to renew.
    Renew,
    /// Ask the keeper to release.
    Release(End),
}

/// What is fixed before a lease is granted.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The lease's timeline.
    pub line: Timeline,
    /// Leave the row of a lost lease where it is, because others are to wait
    /// for longer.
    pub delays_after_loss: bool,
}

/// How long the row of a lost lease is tried to be deleted.
const LOST_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Phase {
    /// The lease must be renewed once before it is given out.
    Proving { by: Tick },
    /// The program has it.
    Held,
    /// It is being given back.
    Releasing(Releasing),
    /// It is over.
    Done(Option<Outcome>),
}

#[derive(Debug)]
struct Releasing {
    end: End,
    give_up: Tick,
    retry_at: Option<Tick>,
    /// Whether an earlier attempt may have worked.
    doubtful: bool,
    last_error: Option<StoreError>,
    /// Why it was not given out.
    unproven: Option<String>,
}

/// The state of a lease.
#[derive(Debug)]
pub struct Renewal {
    plan: Plan,
    phase: Phase,
    /// When the last successful acquire or renewal was sent.
    sent: Tick,
    /// When the next renewal is to be asked for; `None` while one is under
    /// way, or when the row is not ours any more.
    renew_at: Option<Tick>,
    failures: u32,
    last_error: Option<String>,
    lost: Option<Loss>,
    /// Whether the row is known not to be ours, or nobody can ask.
    gone: bool,
}

impl Renewal {
    /// Returns the machine for a lease whose request was sent at `sent`.
    #[must_use]
    pub fn begin(plan: Plan, sent: Tick, now: Tick) -> Self {
        let fresh = plan.line.may_start(sent, now);
        Self {
            plan,
            phase: if fresh {
                Phase::Held
            } else {
                let by = now + plan.line.call_limit();
                Phase::Proving { by }
            },
            sent,
            renew_at: Some(if fresh { plan.line.renew_at(sent) } else { now }),
            failures: 0,
            last_error: None,
            lost: None,
            gone: false,
        }
    }

    /// Tells whether it is still open if the lease is given out.
    #[must_use]
    pub fn is_being_proven(&self) -> bool {
        match &self.phase {
            Phase::Proving { .. } => true,
            Phase::Releasing(releasing) => releasing.unproven.is_some(),
            Phase::Held | Phase::Done(_) => false,
        }
    }

    /// Tells whether it is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done(_))
    }

    /// Returns how it ended, once.
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        match &mut self.phase {
            Phase::Done(outcome) => outcome.take(),
            _ => None,
        }
    }

    /// Tells whether the program has given the lease back, or tries to.
    #[must_use]
    pub fn is_given_back(&self) -> bool {
        matches!(self.phase, Phase::Releasing(_) | Phase::Done(_))
    }

    /// Returns how the lease was lost, if it was by now.
    pub fn loss(&mut self, now: Tick) -> Option<&Loss> {
        if !self.is_given_back() && now >= self.lost_at() {
            let why = self.last_error.take();
            self.lost.get_or_insert(Loss::Late(why));
        }
        self.lost.as_ref()
    }

    /// Returns when the lease counts as lost if nothing happens before.
    #[must_use]
    pub fn lost_at(&self) -> Tick {
        self.plan.line.term_at(self.sent)
    }

    /// Returns how much time is left for whatever must not overlap with the
    /// next holder's.
    #[must_use]
    pub fn time_left(&self, now: Tick) -> Duration {
        match (&self.phase, &self.lost) {
            (Phase::Done(_), _) | (_, Some(Loss::Taken(_))) => Duration::ZERO,
            _ => self.plan.line.kill_at(self.sent) - now,
        }
    }

    /// Returns when [`Renewal::timer`] must be called at the latest.
    #[must_use]
    pub fn wake_at(&self) -> Option<Tick> {
        let moments = match &self.phase {
            Phase::Proving { by } => [self.renew_at, Some(*by)],
            Phase::Held => [self.renew_at, self.lost.is_none().then(|| self.lost_at())],
            Phase::Releasing(releasing) => [releasing.retry_at, Some(releasing.give_up)],
            Phase::Done(_) => [None, None],
        };
        moments.into_iter().flatten().min()
    }

    /// Takes note of an answer to a call that was sent at `sent`.
    pub fn answer(&mut self, sent: Tick, reply: Reply, now: Tick) {
        match reply {
            Reply::Renewed(Ok(Renewed::Extended)) => self.renewed(sent, now),
            Reply::Renewed(Ok(Renewed::Lost(rows))) => self.taken(rows, now),
            Reply::Renewed(Err(error)) => self.renewal_failed(&error, now),
            Reply::Released(answer) => self.released(answer, now),
            Reply::Gone => self.died(),
            Reply::Acquired(_) | Reply::Looked(_) | Reply::Waited(_) | Reply::Forgot(_) => {}
        }
    }

    /// Takes note that a thread has died.
    pub fn died(&mut self) {
        if self.is_over() {
            return;
        }
        let loss = self.lost.get_or_insert(Loss::Died).clone();
        self.gone = true;
        self.phase = Phase::Done(Some(Outcome::Lost(loss)));
    }

    /// The program gives the lease back.
    pub fn release(&mut self, end: End, now: Tick) {
        if self.is_given_back() {
            return;
        }
        let lost = self.loss(now).is_some();
        self.give_back(end, lost, None, now);
    }

    /// Does what is due by the clock, and says what the keeper is to do.
    #[must_use]
    pub fn timer(&mut self, now: Tick) -> Option<Step> {
        self.loss(now);
        match &mut self.phase {
            Phase::Proving { by } if now >= *by => {
                let why = "the database did not answer in time for this TTL";
                self.unproven(why.to_owned(), now);
                self.timer(now)
            }
            Phase::Proving { .. } | Phase::Held => {
                self.renew_at.take_if(|moment| now >= *moment)?;
                Some(Step::Renew)
            }
            Phase::Releasing(releasing) => {
                if now >= releasing.give_up {
                    let error = releasing.last_error.take().unwrap_or_else(|| {
                        StoreError::Unavailable("the database does not answer".to_owned())
                    });
                    self.done(Outcome::NotReleased(error));
                    return None;
                }
                releasing.retry_at.take_if(|moment| now >= *moment)?;
                Some(Step::Release(releasing.end))
            }
            Phase::Done(_) => None,
        }
    }

    fn renewed(&mut self, sent: Tick, now: Tick) {
        self.sent = self.sent.max(sent);
        self.renew_at = Some(self.plan.line.renew_at(self.sent).max(now));
        self.failures = 0;
        self.last_error = None;
        if let Phase::Proving { .. } = self.phase {
            if self.plan.line.may_start(self.sent, now) {
                self.phase = Phase::Held;
            } else {
                let why = format!(
                    "the database took {} to answer, too long for this TTL",
                    humantime::format_duration(now - sent)
                );
                self.unproven(why, now);
            }
        }
    }

    fn renewal_failed(&mut self, error: &StoreError, now: Tick) {
        if let Phase::Proving { .. } = self.phase {
            return self.unproven(error.to_string(), now);
        }
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some(error.to_string());
        // The first attempt after a loss of the connection is made at once: a
        // link that was dropped while idle is no incident.
        let pause = match self.failures {
            1 => Duration::ZERO,
            _ => self.plan.line.retry_pause(),
        };
        self.renew_at = Some(now + pause);
    }

    /// The store says that the row is not ours.
    fn taken(&mut self, rows: Vec<Holder>, now: Tick) {
        self.gone = true;
        self.renew_at = None;
        match &self.phase {
            Phase::Proving { .. } => {
                let why = "somebody else took the lease before it could be proven";
                self.unproven(why.to_owned(), now);
            }
            Phase::Held | Phase::Releasing(_) => {
                // Who was told that it is late must now know that it is over.
                self.lost = Some(Loss::Taken(rows));
            }
            Phase::Done(_) => {}
        }
    }

    fn unproven(&mut self, why: String, now: Tick) {
        self.give_back(End::Dropped, false, Some(why), now);
    }

    fn give_back(&mut self, end: End, lost: bool, unproven: Option<String>, now: Tick) {
        self.renew_at = None;
        let limit = self.plan.line.call_limit();
        let patience = if lost {
            limit.min(LOST_PATIENCE)
        } else {
            limit * 2
        };
        self.phase = Phase::Releasing(Releasing {
            end,
            give_up: now + patience,
            retry_at: Some(now),
            doubtful: false,
            last_error: None,
            unproven,
        });
        if self.gone || lost && self.plan.delays_after_loss {
            self.done(Outcome::Released);
        }
    }

    fn released(&mut self, answer: Result<Released, StoreError>, now: Tick) {
        let Phase::Releasing(releasing) = &mut self.phase else {
            return;
        };
        match answer {
            Ok(Released::NotHeld) if !releasing.doubtful => {
                self.lost.get_or_insert(Loss::Taken(Vec::new()));
                self.done(Outcome::Released);
            }
            Ok(_) => self.done(Outcome::Released),
            Err(error) => {
                // After a failover somebody will be there who can be written to.
                let failover = matches!(error, StoreError::ReadOnly(_));
                if error.may_pass() || failover {
                    releasing.doubtful |= error.outcome_unknown();
                    releasing.retry_at = Some(now + self.plan.line.retry_pause());
                    releasing.last_error = Some(error);
                } else {
                    self.done(Outcome::NotReleased(error));
                }
            }
        }
    }

    /// Ends. What was not given out, and what was lost, is told as that,
    /// whatever has become of the row.
    fn done(&mut self, outcome: Outcome) {
        let unproven = match &mut self.phase {
            Phase::Releasing(releasing) => releasing.unproven.take(),
            _ => None,
        };
        let outcome = match (unproven, &self.lost) {
            (Some(why), _) => Outcome::Unproven(why),
            (None, Some(loss)) => Outcome::Lost(loss.clone()),
            (None, None) => outcome,
        };
        self.phase = Phase::Done(Some(outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Ttl;
    use proptest::prelude::*;

    const SUCCESS: End = End::Finished { succeeded: true };

    fn at(millis: u64) -> Tick {
        Tick::from_boot(Duration::from_millis(millis))
    }

    /// Renew at 10 s, lost at 21 s, the last moment at 28.5 s.
    fn plan() -> Plan {
        let ttl = Ttl::new(Duration::from_secs(30)).expect("a TTL");
        Plan {
            line: Timeline::new(ttl, None).expect("fits"),
            delays_after_loss: false,
        }
    }

    fn extended() -> Reply {
        Reply::Renewed(Ok(Renewed::Extended))
    }

    fn failed() -> Reply {
        Reply::Renewed(Err(StoreError::Unavailable("cut".into())))
    }

    fn held() -> Renewal {
        Renewal::begin(plan(), at(0), at(5))
    }

    #[test]
    fn it_renews_after_a_third_and_counts_from_the_question() {
        let mut lease = held();
        assert_eq!(lease.wake_at(), Some(at(10_000)));
        assert_eq!(lease.timer(at(9_999)), None);
        assert_eq!(lease.timer(at(10_000)), Some(Step::Renew));
        assert_eq!(lease.timer(at(10_001)), None, "one at a time");
        assert_eq!(lease.wake_at(), Some(at(21_000)));
        lease.answer(at(10_000), extended(), at(12_000));
        assert_eq!(lease.wake_at(), Some(at(20_000)));
        assert_eq!(lease.time_left(at(12_000)), Duration::from_millis(26_500));
    }

    #[test]
    fn it_is_lost_in_time_without_any_answer_and_stays_lost() {
        let mut lease = held();
        assert_eq!(lease.timer(at(10_000)), Some(Step::Renew));
        lease.answer(at(10_000), failed(), at(10_100));
        assert_eq!(lease.timer(at(10_100)), Some(Step::Renew), "at once");
        lease.answer(at(10_100), failed(), at(10_200));
        assert_eq!(lease.wake_at(), Some(at(11_200)), "after a pause");
        assert_eq!(lease.loss(at(20_999)), None);
        let late = Loss::Late(Some("cut".into()));
        assert_eq!(lease.loss(at(21_000)), Some(&late));
        assert_eq!(lease.time_left(at(21_000)), Duration::from_millis(7_500));
        // The row is kept for as long as the program needs to stop.
        assert_eq!(lease.timer(at(21_100)), Some(Step::Renew));
        lease.answer(at(21_100), extended(), at(21_200));
        assert_eq!(lease.loss(at(21_200)), Some(&late));
        lease.release(SUCCESS, at(22_000));
        assert_eq!(lease.timer(at(22_000)), Some(Step::Release(SUCCESS)));
        lease.answer(
            at(22_000),
            Reply::Released(Ok(Released::Released)),
            at(22_010),
        );
        assert!(matches!(lease.take_outcome(), Some(Outcome::Lost(loss)) if loss == late));
    }

    #[test]
    fn what_was_taken_has_no_time_left_and_is_not_touched() {
        let mut lease = held();
        assert_eq!(lease.timer(at(10_000)), Some(Step::Renew));
        lease.answer(
            at(10_000),
            Reply::Renewed(Ok(Renewed::Lost(vec![]))),
            at(10_001),
        );
        assert_eq!(lease.loss(at(10_001)), Some(&Loss::Taken(vec![])));
        assert_eq!(lease.time_left(at(10_001)), Duration::ZERO);
        assert_eq!(lease.wake_at(), None);
        lease.release(SUCCESS, at(11_000));
        assert!(matches!(lease.take_outcome(), Some(Outcome::Lost(_))));
        assert_eq!(lease.timer(at(11_000)), None);
    }

    #[test]
    fn it_is_not_given_out_before_it_is_proven() {
        let mut lease = Renewal::begin(plan(), at(0), at(15_000));
        assert!(lease.is_being_proven());
        assert_eq!(lease.timer(at(15_000)), Some(Step::Renew));
        lease.answer(at(15_000), extended(), at(15_100));
        assert!(!lease.is_being_proven() && !lease.is_given_back());

        let mut lease = Renewal::begin(plan(), at(0), at(15_000));
        assert_eq!(lease.timer(at(15_000)), Some(Step::Renew));
        assert_eq!(lease.timer(at(24_000)), Some(Step::Release(End::Dropped)));
        assert!(lease.is_being_proven());
        lease.answer(
            at(24_000),
            Reply::Released(Ok(Released::Released)),
            at(24_001),
        );
        assert!(matches!(lease.take_outcome(), Some(Outcome::Unproven(_))));
    }

    #[test]
    fn a_release_of_unknown_outcome_is_tried_again() {
        let mut lease = held();
        lease.release(SUCCESS, at(1_000));
        assert_eq!(lease.timer(at(1_000)), Some(Step::Release(SUCCESS)));
        let cut = Reply::Released(Err(StoreError::Unavailable("cut".into())));
        lease.answer(at(1_000), cut, at(1_100));
        assert_eq!(lease.timer(at(2_100)), Some(Step::Release(SUCCESS)));
        // The first one has worked.
        lease.answer(at(2_100), Reply::Released(Ok(Released::NotHeld)), at(2_200));
        assert!(matches!(lease.take_outcome(), Some(Outcome::Released)));

        let mut lease = held();
        lease.release(SUCCESS, at(1_000));
        assert_eq!(lease.timer(at(1_000)), Some(Step::Release(SUCCESS)));
        lease.answer(at(1_000), Reply::Released(Ok(Released::NotHeld)), at(1_100));
        assert!(matches!(lease.take_outcome(), Some(Outcome::Lost(_))));
    }

    #[test]
    fn a_release_without_an_answer_ends_by_itself() {
        let mut lease = held();
        lease.release(SUCCESS, at(1_000));
        assert_eq!(lease.timer(at(1_000)), Some(Step::Release(SUCCESS)));
        assert_eq!(lease.wake_at(), Some(at(19_000)));
        assert_eq!(lease.timer(at(19_000)), None);
        assert!(matches!(
            lease.take_outcome(),
            Some(Outcome::NotReleased(_))
        ));
    }

    #[test]
    fn a_lost_row_stays_if_others_are_to_wait_for_longer() {
        let plan = Plan {
            delays_after_loss: true,
            ..plan()
        };
        let mut lease = Renewal::begin(plan, at(0), at(0));
        lease.release(End::Finished { succeeded: false }, at(25_000));
        assert!(matches!(
            lease.take_outcome(),
            Some(Outcome::Lost(Loss::Late(_)))
        ));
        assert_eq!(lease.timer(at(25_000)), None);
    }

    #[test]
    fn a_thread_that_dies_is_a_loss() {
        let mut lease = held();
        lease.answer(at(100), Reply::Gone, at(100));
        assert_eq!(lease.loss(at(100)), Some(&Loss::Died));
        assert!(lease.is_over());
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Extended,
        Failed,
        Taken,
        NotHeld,
        Released,
        Gone,
        Release,
        Nothing,
    }

    fn event() -> impl Strategy<Value = Event> {
        use Event::{Extended, Failed, Gone, NotHeld, Nothing, Release, Released, Taken};
        proptest::sample::select(vec![
            Extended, Extended, Failed, Taken, NotHeld, Released, Gone, Release, Nothing, Nothing,
        ])
    }

    proptest! {
        /// Whatever happens in whatever order.
        #[test]
        fn what_always_holds(
            begin in 0u64..40_000,
            events in proptest::collection::vec((0u64..8_000, event()), 0..40),
        ) {
            let mut now = at(begin);
            let mut lease = Renewal::begin(plan(), at(0), now);
            let mut good = at(0);
            let mut was_lost = false;
            let mut taken = false;
            let mut ends = 0;
            for (pause, event) in events {
                let asked = now;
                now = now + Duration::from_millis(pause);
                match event {
                    Event::Extended => {
                        lease.answer(asked, extended(), now);
                        good = good.max(asked);
                    }
                    Event::Failed => lease.answer(asked, failed(), now),
                    Event::Taken => {
                        taken |= !lease.is_over();
                        lease.answer(asked, Reply::Renewed(Ok(Renewed::Lost(vec![]))), now);
                    }
                    Event::NotHeld => {
                        lease.answer(asked, Reply::Released(Ok(Released::NotHeld)), now);
                    }
                    Event::Released => {
                        lease.answer(asked, Reply::Released(Ok(Released::Released)), now);
                    }
                    Event::Gone => lease.answer(asked, Reply::Gone, now),
                    Event::Release => lease.release(SUCCESS, now),
                    Event::Nothing => {}
                }
                let step = lease.timer(now);
                let open = !lease.is_given_back() && !lease.is_being_proven();
                let lost = lease.loss(now).is_some();
                prop_assert!(lost || !was_lost, "what is lost stays lost");
                prop_assert!(lost || !open || now < plan().line.term_at(good));
                prop_assert!(!(taken && open) || lost);
                prop_assert!(lease.time_left(now) <= plan().line.kill_at(good) - now);
                prop_assert!(step.is_none() || !lease.is_over());
                prop_assert!(lease.wake_at().is_none_or(|moment| moment > now) || step.is_some());
                if let Some(Step::Release(_)) = step {
                    prop_assert!(lease.is_given_back());
                }
                was_lost = lost;
                ends += u32::from(lease.take_outcome().is_some());
            }
            prop_assert!(ends <= 1);
        }
    }
}
