//! The way to a grant: first attempt, waiting, unknown outcomes, giving up.
//!
//! A pure state machine: it is told what happened and when, and says what to
//! do next. It does no I/O and reads no clock, so that every course of events
//! can be tested.

use std::time::Duration;

use crate::clock::Tick;
use crate::keeper::{Call, Reply};
use crate::lock::{Claimant, Grant, Holder, Key, Kind, Owner, Request, State, Terms, Ttl, Waiter};
use crate::signals::Sig;
use crate::store::{Acquired, End, Place, StoreError, Turn, Waited};

/// How long to wait for a key that is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// Up to this time from the start on.
    For(Duration),
    /// Until it is free.
    Forever,
}

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The key.
    pub key: Key,
    /// The lease.
    pub ttl: Ttl,
    /// What else is asked for.
    pub terms: Terms,
    /// The one slot to take; without it any that is free.
    pub slot: Option<u16>,
    /// What the lease will be held by.
    pub kind: Kind,
    /// Who asks.
    pub claimant: Claimant,
    /// How long to wait.
    pub patience: Patience,
    /// How long the database may take to answer at all while nothing is held.
    pub contact: Duration,
}

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Make this call, and report the answer.
    Ask(Call),
    /// Have the call that is under way dropped; its answer still comes.
    Cancel,
    /// Nothing, until something happens or [`Acquisition::wake_at`] comes.
    Wait,
    /// The lease is granted.
    Won(Won),
    /// It ends without a lease.
    End(Refusal),
}

/// A lease that was just granted.
#[derive(Debug)]
pub struct Won {
    /// The grant.
    pub grant: Grant,
    /// When the request was sent: the lease counts from here.
    pub sent: Tick,
    /// Earlier attempts of unknown outcome, which a server may yet carry out.
    pub former: Vec<Owner>,
    /// The wait that others were shown, to be taken out of the table.
    pub waiter: Option<Owner>,
}

/// Why there is no lease.
#[derive(Debug)]
pub enum Refusal {
    /// Others hold the key, or it is kept shut.
    Busy(Vec<Holder>),
    /// Others use the key with another number of slots.
    SlotsDiffer(Vec<Holder>),
    /// The store has no answer.
    Failed(StoreError),
    /// A signal came first.
    Interrupted(Sig),
    /// The keeper's thread is gone.
    KeeperDied,
}

/// How long a call may still take after a signal, or after the time for
/// waiting is over: long enough to learn of a grant and give it back.
const LAST_WORD: Duration = Duration::from_secs(1);
/// First and longest pause between looks at a busy key.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(3200));
/// First and longest pause between looks of the first waiter in a queue.
const PAUSE_FIRST: (Duration, Duration) = (Duration::from_millis(80), Duration::from_millis(500));
/// The same where nobody wakes it: of several holders none can keep the baton.
const PAUSE_FIRST_FOR_SLOTS: (Duration, Duration) =
    (Duration::from_millis(80), Duration::from_millis(150));
/// Pause of a waiter without a connection for each that is ahead of it, and
/// the longest.
const PAUSE_FAR: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(20));
/// First and longest pause after a transient error, and the longest for those
/// who have time.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(640));
const RETRY_WAITING: Duration = Duration::from_millis(3200);
/// Longest sleep in the store's queue.
const SLEEP: Duration = Duration::from_secs(60);

/// The state of the attempt.
#[derive(Debug)]
pub struct Acquisition {
    wanted: Wanted,
    started: Tick,
    random: fastrand::Rng,
    phase: Phase,
    /// Pauses made so far on a busy key, and on errors since the last answer.
    looks: u32,
    failures: u32,
    /// Times in a row that nobody was found to stand in the way.
    vanished: u32,
    /// Whether the store has answered at all.
    answered: bool,
    /// Whether it has told who holds the key.
    seen: bool,
    last_error: Option<StoreError>,
    holders: Vec<Holder>,
    former: Vec<Owner>,
    /// The wait, since it was shown to others.
    waiter: Option<Waiter>,
    place: Option<Place>,
    /// Why to end after the call that is under way.
    ending: Option<Ending>,
}

/// Why the call that is under way is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// A signal came.
    Signal(Sig),
    /// It takes too long.
    Late,
}

#[derive(Debug)]
enum Phase {
    /// A call was sent and must be answered by the given moment.
    Asking {
        give_up: Option<Tick>,
        owner: Option<Owner>,
    },
    /// Nothing is under way until the moment, when `then` follows.
    Pausing { until: Tick, then: Then },
    /// A grant that must not be used is being given back; these rows stand
    /// beside it.
    Returning { owner: Owner, rows: Vec<Holder> },
    /// The last call, which removes what was left.
    Tidying {
        give_up: Tick,
        call: Box<Call>,
        retries: u32,
        refusal: Option<Refusal>,
    },
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Look,
    /// Wait in the queue again.
    Queue,
    Acquire,
}

impl Acquisition {
    /// Returns the machine and its first step.
    #[must_use]
    pub fn begin(wanted: Wanted, random: fastrand::Rng, now: Tick) -> (Self, Step) {
        let mut machine = Self {
            wanted,
            started: now,
            random,
            phase: Phase::Pausing {
                until: now,
                then: Then::Acquire,
            },
            looks: 0,
            failures: 0,
            vanished: 0,
            answered: false,
            seen: false,
            last_error: None,
            holders: Vec::new(),
            former: Vec::new(),
            waiter: None,
            place: None,
            ending: None,
        };
        let slot = machine.any_slot();
        let step = machine.acquire(slot, now);
        (machine, step)
    }

    /// Returns who held the key at the last look.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Returns where among those who wait this one stands, as far as is known.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// Returns when [`Acquisition::timer`] must be called at the latest.
    #[must_use]
    pub fn wake_at(&self) -> Option<Tick> {
        match &self.phase {
            Phase::Asking { give_up, .. } => *give_up,
            Phase::Pausing { until, .. } => Some(*until),
            Phase::Returning { .. } => None,
            Phase::Tidying { give_up, .. } => Some(*give_up),
        }
    }

    /// Takes note of an answer to a call that was sent at `sent`.
    pub fn answer(&mut self, sent: Tick, reply: Reply, now: Tick) -> Step {
        let asked = match &mut self.phase {
            Phase::Asking { owner, .. } => owner.take(),
            Phase::Pausing { .. } => None,
            Phase::Returning { owner, rows } => {
                // If it could not be given back, the next attempt removes it.
                if !matches!(reply, Reply::Released(Ok(_))) {
                    self.former.push(owner.clone());
                }
                let rows = std::mem::take(rows);
                return match reply {
                    Reply::Gone => Step::End(Refusal::KeeperDied),
                    _ => self.busy(rows, now),
                };
            }
            Phase::Tidying {
                call,
                retries,
                refusal,
                ..
            } => {
                // A connection may be lost just then, not least because the
                // call before was dropped.
                let lost = matches!(
                    &reply,
                    Reply::Released(Err(error)) | Reply::Forgot(Err(error))
                        if error.outcome_unknown()
                );
                if lost && *retries > 0 {
                    *retries -= 1;
                    return Step::Ask(Call::clone(call));
                }
                let refusal = refusal.take().unwrap_or(Refusal::KeeperDied);
                return match **call {
                    // What else was left comes next.
                    Call::Release(..) => self.end(refusal, now),
                    _ => Step::End(refusal),
                };
            }
        };
        match reply {
            Reply::Acquired(Ok(Acquired::Granted(grant))) => match self.ending {
                None => Step::Won(Won {
                    grant,
                    sent,
                    former: std::mem::take(&mut self.former),
                    waiter: self.waiter.take().map(|waiter| waiter.id),
                }),
                Some(_) => {
                    let refusal = self.no_answer();
                    self.former
                        .extend(self.waiter.take().map(|waiter| waiter.id));
                    self.tidy(Call::Release(grant, End::Dropped), refusal, now)
                }
            },
            Reply::Acquired(Ok(Acquired::Contested(grant, rows))) => {
                let owner = grant.owner.clone();
                let rows = rows.into_iter().filter(|row| row.grant.owner != owner);
                self.phase = Phase::Returning {
                    rows: rows.collect(),
                    owner,
                };
                Step::Ask(Call::Release(grant, End::Dropped))
            }
            Reply::Acquired(Ok(Acquired::Busy(holders))) => {
                // Something on the way has sent the attempt twice.
                let own = |owner: &Owner| holders.iter().any(|row| row.grant.owner == *owner);
                self.former.extend(asked.filter(own));
                self.busy(holders, now)
            }
            Reply::Looked(Ok(holders)) => self.busy(holders, now),
            Reply::Acquired(Err(error)) => {
                if error.outcome_unknown() {
                    self.former.extend(asked);
                }
                self.failed(error, now)
            }
            Reply::Waited(Ok(waited)) => self.waited(waited, now),
            Reply::Looked(Err(error)) | Reply::Waited(Err(error)) => self.failed(error, now),
            Reply::Gone => Step::End(Refusal::KeeperDied),
            Reply::Renewed(_) | Reply::Released(_) | Reply::Forgot(_) => Step::Wait,
        }
    }

    /// Takes note that the moment of [`Acquisition::wake_at`] has come.
    pub fn timer(&mut self, now: Tick) -> Step {
        if self.wake_at().is_none_or(|moment| now < moment) {
            return Step::Wait;
        }
        match &mut self.phase {
            Phase::Pausing { then, .. } => match *then {
                Then::Look => self.look(now),
                Then::Queue => self.queue(now),
                Then::Acquire => {
                    let slot = self.any_slot();
                    self.acquire(slot, now)
                }
            },
            Phase::Asking { give_up, .. } => match self.ending {
                None => {
                    *give_up = Some(now + LAST_WORD);
                    self.ending = Some(Ending::Late);
                    Step::Cancel
                }
                Some(_) => Step::End(self.no_answer()),
            },
            Phase::Returning { .. } => Step::Wait,
            Phase::Tidying { refusal, .. } => {
                Step::End(refusal.take().unwrap_or(Refusal::KeeperDied))
            }
        }
    }

    /// Takes note of a signal that ends dblock.
    pub fn signal(&mut self, sig: Sig, now: Tick) -> Step {
        match &mut self.phase {
            Phase::Pausing { .. } => self.end(Refusal::Interrupted(sig), now),
            Phase::Asking { give_up, .. } => {
                let soon = now + LAST_WORD;
                *give_up = Some(give_up.map_or(soon, |moment| moment.min(soon)));
                match self.ending.replace(Ending::Signal(sig)) {
                    None => Step::Cancel,
                    Some(_) => Step::Wait,
                }
            }
            Phase::Returning { .. } => {
                self.ending = Some(Ending::Signal(sig));
                Step::Wait
            }
            Phase::Tidying { .. } => Step::Wait,
        }
    }

    /// Returns the slot for an attempt that knows nothing: by chance, so that
    /// those who come at once do not all try the same.
    fn any_slot(&mut self) -> u16 {
        let slots = self.wanted.terms.slots.max(1);
        self.wanted
            .slot
            .unwrap_or_else(|| self.random.u16(0..slots))
    }

    /// Returns a slot that nobody of these has, by chance among all such.
    fn free_slot(&mut self, taken: &[Holder]) -> Option<u16> {
        let all = match self.wanted.slot {
            Some(slot) => slot..slot + 1,
            None => 0..self.wanted.terms.slots,
        };
        let free: Vec<u16> = all
            .filter(|slot| !taken.iter().any(|row| row.grant.slot == *slot))
            .collect();
        (!free.is_empty()).then(|| free[self.random.usize(0..free.len())])
    }

    fn acquire(&mut self, slot: u16, now: Tick) -> Step {
        let owner = Owner::generate();
        self.phase = Phase::Asking {
            give_up: self.limit(now),
            owner: Some(owner.clone()),
        };
        Step::Ask(Call::Acquire(Request {
            key: self.wanted.key.clone(),
            slot,
            ttl: self.wanted.ttl,
            terms: self.wanted.terms,
            owner,
            former: self.former.clone(),
            kind: self.wanted.kind,
            claimant: self.wanted.claimant.clone(),
        }))
    }

    fn look(&mut self, now: Tick) -> Step {
        self.phase = Phase::Asking {
            give_up: self.limit(now),
            owner: None,
        };
        Step::Ask(Call::Look(self.wanted.key.clone()))
    }

    /// Waits in the store's queue for as long as nothing else is due.
    fn queue(&mut self, now: Tick) -> Step {
        let claimant = &self.wanted.claimant;
        let waiter = self.waiter.take().unwrap_or_else(|| Waiter {
            id: Owner::generate(),
            key: self.wanted.key.clone(),
            host: claimant.host.clone(),
            pid: claimant.pid,
            user: claimant.user.clone(),
            waiting: now - self.started,
        });
        // The first must see a holder's lease end that nobody gives back. Those
        // behind it need not.
        let mut limit = match self.place {
            Some(place) if place.ahead > 0 => SLEEP,
            _ => self.soonest().unwrap_or_default().min(SLEEP),
        };
        if let Some(end) = self.over() {
            limit = limit.min(end - now);
        }
        self.waiter = Some(waiter.clone());
        self.phase = Phase::Asking {
            give_up: self.limit(now),
            owner: None,
        };
        Step::Ask(Call::Wait(waiter, limit))
    }

    fn waited(&mut self, waited: Waited, now: Tick) -> Step {
        self.failures = 0;
        self.place = waited.place.or(self.place);
        if self.ending.is_some() {
            let refusal = self.no_answer();
            return self.end(refusal, now);
        }
        let (pauses, then) = match waited.turn {
            Turn::Look => return self.look(now),
            Turn::First if self.wanted.terms.slots > 1 => (PAUSE_FIRST_FOR_SLOTS, Then::Look),
            Turn::First => (PAUSE_FIRST, Then::Look),
            Turn::NoQueue => (PAUSE, Then::Look),
            Turn::Far => {
                let ahead = waited.place.map_or(0, |place| place.ahead);
                let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
                let whole = PAUSE_FAR.0.saturating_mul(ahead).min(PAUSE_FAR.1);
                ((whole, whole), Then::Queue)
            }
        };
        let mut pause = self.jittered(pauses, self.looks.saturating_sub(1));
        // Of those who are far, others see the lease end.
        if let (Then::Look, Some(soonest)) = (then, self.soonest()) {
            pause = pause.min(soonest + Duration::from_millis(1));
        }
        let until = now + pause;
        self.phase = match self.over() {
            Some(end) if end <= until => Phase::Pausing {
                until: end,
                then: Then::Look,
            },
            _ => Phase::Pausing { until, then },
        };
        Step::Wait
    }

    /// Returns when the first of those who stand in the way may be gone.
    fn soonest(&self) -> Option<Duration> {
        self.holders.iter().map(|row| row.remaining).min()
    }

    /// Returns when a call that is made now is given up: a waiter's last look
    /// is still waited for, a first contact is not.
    fn limit(&self, now: Tick) -> Option<Tick> {
        let last_word = if self.answered {
            LAST_WORD
        } else {
            Duration::ZERO
        };
        self.deadline().map(|moment| moment.max(now) + last_word)
    }

    /// Returns until when errors are ridden out. The first contact has its
    /// own limit; a waiter that has had an answer is patient to the end.
    fn deadline(&self) -> Option<Tick> {
        match self.wanted.patience {
            Patience::For(length) if self.answered => Some(self.started + length),
            Patience::Forever if self.answered => None,
            _ => Some(self.started + self.wanted.contact),
        }
    }

    /// Returns when the time for waiting is over.
    fn over(&self) -> Option<Tick> {
        match self.wanted.patience {
            Patience::None => Some(self.started),
            Patience::For(length) => Some(self.started + length),
            Patience::Forever => None,
        }
    }

    fn is_over(&self, now: Tick) -> bool {
        self.over().is_some_and(|end| now >= end)
    }

    fn busy(&mut self, holders: Vec<Holder>, now: Tick) -> Step {
        self.answered = true;
        self.seen = true;
        self.failures = 0;
        self.last_error = None;
        if self.ending.is_some() {
            let refusal = self.no_answer();
            return self.end(refusal, now);
        }
        let terms = self.wanted.terms;
        let mut taken: Vec<Holder> = holders
            .into_iter()
            .filter(|row| row.state.excludes(&terms))
            .collect();
        let differ = |row: &Holder| {
            matches!(row.state, State::Held | State::Closing) && row.slots != terms.slots
        };
        if taken.iter().any(differ) {
            return self.end(Refusal::SlotsDiffer(taken), now);
        }
        // What has been done already is not waited for: it would be done again.
        if taken.iter().any(|row| row.state == State::Done) {
            return self.end(Refusal::Busy(taken), now);
        }
        let blocked = taken.iter().any(|row| row.state == State::Blocked);
        let own_leftover = taken
            .iter()
            .any(|row| self.former.contains(&row.grant.owner));
        // Nobody, or only a former attempt of ours, stands in the way.
        let free = self.free_slot(&taken).filter(|_| !blocked);
        if free.is_some() || own_leftover {
            self.vanished += 1;
            if self.vanished <= u32::from(terms.slots) {
                let slot = free.unwrap_or_else(|| self.any_slot());
                return self.acquire(slot, now);
            }
            if self.deadline().is_some_and(|moment| now >= moment) {
                return self.end(Refusal::Busy(taken), now);
            }
            return self.pause(self.vanished, now);
        }
        self.vanished = 0;
        // The holders of other slots do not stand in the way of a fixed one.
        if let Some(slot) = self.wanted.slot {
            taken.retain(|row| row.state == State::Blocked || row.grant.slot == slot);
        }
        self.holders = taken;
        if self.is_over(now) {
            let holders = std::mem::take(&mut self.holders);
            return self.end(Refusal::Busy(holders), now);
        }
        self.looks = self.looks.saturating_add(1);
        self.queue(now)
    }

    fn failed(&mut self, error: StoreError, now: Tick) -> Step {
        if self.ending.is_some() {
            self.last_error.get_or_insert(error);
            let refusal = self.no_answer();
            return self.end(refusal, now);
        }
        // A server that says "not now" has answered.
        self.answered |= matches!(error, StoreError::Transient(_));
        // A connection that cannot be made is not tried again by those who do
        // not want to wait; everything else that may pass is, within the time
        // for a first contact.
        let hopeless = match &error {
            // Once there was a connection, it is: the server may be starting
            // again, and what was asked for may have been carried out.
            StoreError::Unreachable(_) => {
                self.wanted.patience == Patience::None && !self.answered && self.failures == 0
            }
            // Who has seen it written to waits for the failover to end.
            StoreError::ReadOnly(_) => !self.seen,
            other => !other.may_pass(),
        };
        if hopeless || self.deadline().is_some_and(|moment| now >= moment) {
            return self.end(Refusal::Failed(error), now);
        }
        self.last_error = Some(error);
        self.failures = self.failures.saturating_add(1);
        self.pause(self.failures, now)
    }

    /// Waits before the next attempt, longer each time.
    fn pause(&mut self, times: u32, now: Tick) -> Step {
        // Who may wait is in no hurry to be one of too many.
        let longest = match self.wanted.patience {
            Patience::None => RETRY.1,
            Patience::For(_) | Patience::Forever => RETRY_WAITING,
        };
        let pause = self.jittered((RETRY.0, longest), times);
        self.phase = Phase::Pausing {
            until: now + pause,
            then: Then::Acquire,
        };
        Step::Wait
    }

    /// Returns `first`, doubled `times` times, at most `longest`, a quarter
    /// more or less by chance, so that many waiters do not come at once.
    fn jittered(&mut self, (first, longest): (Duration, Duration), times: u32) -> Duration {
        let whole = first.saturating_mul(1 << times.min(16)).min(longest);
        whole.mul_f64(0.75 + self.random.f64() / 2.0)
    }

    fn no_answer(&mut self) -> Refusal {
        if let Some(Ending::Signal(sig)) = self.ending {
            return Refusal::Interrupted(sig);
        }
        Refusal::Failed(self.last_error.take().unwrap_or_else(|| {
            StoreError::Unreachable(format!(
                "no answer from the database within {}",
                humantime::format_duration(self.wanted.contact)
            ))
        }))
    }

    /// Ends, after what former attempts may have left was removed.
    fn end(&mut self, refusal: Refusal, now: Tick) -> Step {
        self.former
            .extend(self.waiter.take().map(|waiter| waiter.id));
        if self.former.is_empty() {
            return Step::End(refusal);
        }
        let former = std::mem::take(&mut self.former);
        let key = self.wanted.key.clone();
        self.tidy(Call::Forget(key, former), refusal, now)
    }

    fn tidy(&mut self, call: Call, refusal: Refusal, now: Tick) -> Step {
        self.phase = Phase::Tidying {
            give_up: now + LAST_WORD,
            call: Box::new(call.clone()),
            retries: 3,
            refusal: Some(refusal),
        };
        Step::Ask(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Token;

    const SECOND: Duration = Duration::from_secs(1);

    fn wanted(patience: Patience) -> Wanted {
        Wanted {
            key: Key::new("k").expect("a key"),
            ttl: Ttl::new(30 * SECOND).expect("a TTL"),
            terms: Terms::default(),
            slot: None,
            kind: Kind::Run,
            claimant: Claimant::default(),
            patience,
            contact: 5 * SECOND,
        }
    }

    fn at(millis: u64) -> Tick {
        Tick::from_boot(Duration::from_millis(millis))
    }

    fn begin(patience: Patience) -> (Acquisition, Request) {
        let (machine, step) =
            Acquisition::begin(wanted(patience), fastrand::Rng::with_seed(7), at(0));
        (machine, request(step))
    }

    fn request(step: Step) -> Request {
        match step {
            Step::Ask(Call::Acquire(request)) => request,
            other => panic!("not an attempt to acquire: {other:?}"),
        }
    }

    fn row(owner: &Owner, remaining: Duration) -> Holder {
        Holder {
            grant: Grant {
                key: Key::new("k").expect("a key"),
                slot: 0,
                owner: owner.clone(),
                token: Token(1),
            },
            state: if remaining.is_zero() {
                State::Expired
            } else {
                State::Held
            },
            kind: Kind::Run,
            slots: 1,
            claimant: Claimant::default(),
            acquired_at: None,
            held: Duration::ZERO,
            remaining,
            ttl: 30 * SECOND,
            renewals: 0,
        }
    }

    fn busy(remaining: Duration) -> Reply {
        Reply::Acquired(Ok(Acquired::Busy(vec![row(&Owner::generate(), remaining)])))
    }

    fn looked_busy(remaining: Duration) -> Reply {
        Reply::Looked(Ok(vec![row(&Owner::generate(), remaining)]))
    }

    fn lost_reply() -> Reply {
        Reply::Acquired(Err(StoreError::Unavailable("gone".into())))
    }

    fn granted(request: &Request) -> Reply {
        Reply::Acquired(Ok(Acquired::Granted(Grant {
            key: request.key.clone(),
            slot: 0,
            owner: request.owner.clone(),
            token: Token(9),
        })))
    }

    /// Answers a waiter's question for a queue: there is none.
    fn queueless(machine: &mut Acquisition, step: Step, now: Tick) -> Step {
        assert!(matches!(step, Step::Ask(Call::Wait(..))), "{step:?}");
        machine.answer(now, waited(Turn::NoQueue, 0), now)
    }

    fn waited(turn: Turn, ahead: u64) -> Reply {
        let place = Some(Place {
            ahead,
            waiting: ahead + 1,
        });
        Reply::Waited(Ok(Waited { turn, place }))
    }

    fn beside(state: State, slot: u16, slots: u16) -> Holder {
        let mut row = row(&Owner::generate(), SECOND);
        row.state = state;
        row.grant.slot = slot;
        row.slots = slots;
        row
    }

    fn with_terms(patience: Patience, terms: Terms) -> (Acquisition, Request) {
        let mut wanted = wanted(patience);
        wanted.terms = terms;
        let random = fastrand::Rng::with_seed(7);
        let (machine, step) = Acquisition::begin(wanted, random, at(0));
        (machine, request(step))
    }

    fn slots(slots: u16) -> Terms {
        Terms {
            slots,
            ..Terms::default()
        }
    }

    #[test]
    fn a_waiter_sleeps_no_longer_than_the_lease_or_its_time() {
        for (patience, left, expected) in [
            (Patience::Forever, 9, 9),
            (Patience::Forever, 900, 60),
            (Patience::For(4 * SECOND), 9, 4),
        ] {
            let (mut machine, _) = begin(patience);
            let step = machine.answer(at(0), busy(left * SECOND), at(0));
            assert!(
                matches!(&step, Step::Ask(Call::Wait(_, limit)) if *limit == expected * SECOND),
                "{step:?}"
            );
            // Behind others it need not see the lease end.
            let step = machine.answer(at(0), waited(Turn::Look, 3), at(0));
            assert!(matches!(step, Step::Ask(Call::Look(_))));
            let step = machine.answer(at(0), looked_busy(left * SECOND), at(0));
            let longest = if patience == Patience::Forever { 60 } else { 4 };
            assert!(
                matches!(&step, Step::Ask(Call::Wait(_, limit)) if *limit == longest * SECOND),
                "{step:?}"
            );
            // Woken, it looks before it tries.
            let step = machine.answer(at(0), waited(Turn::Look, 0), at(3));
            assert!(matches!(step, Step::Ask(Call::Look(_))));
        }
    }

    #[test]
    fn the_first_in_the_queue_looks_often_and_the_last_seldom() {
        let (mut machine, _) = begin(Patience::Forever);
        machine.answer(at(0), busy(900 * SECOND), at(0));
        machine.answer(at(0), waited(Turn::First, 0), at(0));
        assert!(machine.wake_at().expect("a moment") <= at(100));
        assert!(matches!(machine.timer(at(100)), Step::Ask(Call::Look(_))));
        machine.answer(at(100), looked_busy(900 * SECOND), at(100));
        machine.answer(at(100), waited(Turn::Far, 70), at(100));
        let wake = machine.wake_at().expect("a moment");
        assert!(wake >= at(10_000) && wake <= at(18_000), "{wake:?}");
        // It asks for its place again, and does not try before those ahead.
        assert!(matches!(machine.timer(wake), Step::Ask(Call::Wait(..))));
    }

    #[test]
    fn any_free_slot_is_taken_and_no_other() {
        let (mut machine, first) = with_terms(Patience::None, slots(3));
        assert!(first.slot < 3 && first.terms.slots == 3);
        let taken = [0, 2].map(|slot| beside(State::Held, slot, 3));
        let step = machine.answer(
            at(0),
            Reply::Acquired(Ok(Acquired::Busy(taken.into()))),
            at(1),
        );
        assert_eq!(request(step).slot, 1);
        let taken = [0, 1, 2].map(|slot| beside(State::Held, slot, 3));
        let step = machine.answer(
            at(1),
            Reply::Acquired(Ok(Acquired::Busy(taken.into()))),
            at(2),
        );
        assert!(matches!(step, Step::End(Refusal::Busy(rows)) if rows.len() == 3));
    }

    #[test]
    fn a_fixed_slot_is_waited_for_though_others_are_free() {
        let mut wanted = wanted(Patience::Forever);
        wanted.terms = slots(3);
        wanted.slot = Some(2);
        let (mut machine, step) = Acquisition::begin(wanted, fastrand::Rng::with_seed(7), at(0));
        assert_eq!(request(step).slot, 2);
        let taken = vec![beside(State::Held, 2, 3)];
        let step = machine.answer(at(0), Reply::Acquired(Ok(Acquired::Busy(taken))), at(1));
        assert!(matches!(step, Step::Ask(Call::Wait(..))));
    }

    #[test]
    fn another_number_of_slots_is_refused_whether_busy_or_granted() {
        for patience in [Patience::None, Patience::Forever] {
            let (mut machine, _) = with_terms(patience, slots(3));
            let rows = vec![beside(State::Held, 0, 5)];
            let step = machine.answer(at(0), Reply::Acquired(Ok(Acquired::Busy(rows))), at(1));
            assert!(matches!(step, Step::End(Refusal::SlotsDiffer(_))));

            let (mut machine, request) = with_terms(patience, slots(3));
            let rows = vec![beside(State::Held, 4, 5)];
            let step = contested(&mut machine, &request, rows);
            assert!(matches!(step, Step::End(Refusal::SlotsDiffer(_))));
        }
    }

    /// Answers with a grant that must not be used, and gives it back.
    fn contested(machine: &mut Acquisition, request: &Request, rows: Vec<Holder>) -> Step {
        let Reply::Acquired(Ok(Acquired::Granted(grant))) = granted(request) else {
            panic!("granted");
        };
        let reply = Reply::Acquired(Ok(Acquired::Contested(grant.clone(), rows)));
        let step = machine.answer(at(0), reply, at(1));
        assert!(
            matches!(&step, Step::Ask(Call::Release(back, End::Dropped)) if *back == grant),
            "{step:?}"
        );
        machine.answer(
            at(1),
            Reply::Released(Ok(crate::store::Released::Released)),
            at(2),
        )
    }

    #[test]
    fn a_block_beside_a_grant_is_busy_or_waited_for() {
        let rows = || vec![beside(State::Blocked, crate::lock::BLOCK_SLOT, 0)];
        let (mut machine, request) = begin(Patience::None);
        let step = contested(&mut machine, &request, rows());
        assert!(matches!(step, Step::End(Refusal::Busy(_))));
        let (mut machine, request) = begin(Patience::Forever);
        let step = contested(&mut machine, &request, rows());
        assert!(matches!(step, Step::Ask(Call::Wait(..))));
    }

    #[test]
    fn what_has_been_done_is_not_waited_for() {
        let once = Terms {
            once_per: Some(SECOND),
            ..Terms::default()
        };
        let (mut machine, _) = with_terms(Patience::Forever, once);
        let rows = vec![beside(State::Done, 0, 1)];
        let step = machine.answer(at(0), Reply::Acquired(Ok(Acquired::Busy(rows))), at(1));
        assert!(matches!(step, Step::End(Refusal::Busy(_))));
        // It stands in the way of nobody else.
        let (mut machine, _) = begin(Patience::None);
        let rows = vec![beside(State::Done, 0, 1)];
        request(machine.answer(at(0), Reply::Acquired(Ok(Acquired::Busy(rows))), at(1)));
    }

    #[test]
    fn a_grant_that_cannot_be_given_back_is_removed_by_the_next_attempt() {
        let (mut machine, first) = begin(Patience::Forever);
        let Reply::Acquired(Ok(Acquired::Granted(grant))) = granted(&first) else {
            panic!("granted");
        };
        let rows = vec![beside(State::Blocked, crate::lock::BLOCK_SLOT, 0)];
        machine.answer(
            at(0),
            Reply::Acquired(Ok(Acquired::Contested(grant, rows))),
            at(1),
        );
        let cut = Reply::Released(Err(StoreError::Unavailable("cut".into())));
        let step = machine.answer(at(1), cut, at(2));
        assert!(matches!(step, Step::Ask(Call::Wait(..))));
        machine.answer(at(2), waited(Turn::Look, 0), at(3));
        let next = request(machine.answer(at(3), Reply::Looked(Ok(Vec::new())), at(4)));
        assert_eq!(next.former, [first.owner]);
    }

    #[test]
    fn a_free_key_is_won_and_counts_from_the_question() {
        let (mut machine, request) = begin(Patience::None);
        let Step::Won(won) = machine.answer(at(3), granted(&request), at(900)) else {
            panic!("not won");
        };
        assert_eq!(won.sent, at(3));
        assert_eq!(won.grant.token, Token(9));
    }

    #[test]
    fn without_patience_busy_is_final() {
        let (mut machine, _) = begin(Patience::None);
        let step = machine.answer(at(0), busy(9 * SECOND), at(5));
        assert!(matches!(step, Step::End(Refusal::Busy(rows)) if rows.len() == 1));
    }

    #[test]
    fn a_row_that_just_went_is_tried_again_at_once() {
        let (mut machine, first) = begin(Patience::None);
        let second = request(machine.answer(at(0), busy(Duration::ZERO), at(5)));
        assert_ne!(first.owner, second.owner, "an owner id is for one attempt");
        assert!(second.former.is_empty(), "busy is an answer");
    }

    #[test]
    fn holders_who_are_never_seen_do_not_make_it_spin() {
        let (mut machine, _) = begin(Patience::None);
        let mut now = at(0);
        let mut attempts = 1;
        let mut step = machine.answer(now, busy(Duration::ZERO), now);
        while !matches!(step, Step::End(_)) {
            if let Step::Wait = step {
                now = machine.wake_at().expect("a moment");
                step = machine.timer(now);
            }
            request(step);
            attempts += 1;
            step = machine.answer(now, busy(Duration::ZERO), now);
        }
        assert!(matches!(step, Step::End(Refusal::Busy(_))));
        assert!(attempts < 30 && now < at(6000), "{attempts} by {now:?}");
    }

    #[test]
    fn a_waiter_that_hears_not_now_is_patient() {
        let (mut machine, _) = begin(Patience::For(30 * SECOND));
        let mut now = at(0);
        let deadlock = || Reply::Acquired(Err(StoreError::Transient("1205".into())));
        while now < at(20_000) {
            assert!(matches!(machine.answer(now, deadlock(), now), Step::Wait));
            now = machine.wake_at().expect("a moment");
            request(machine.timer(now));
        }
    }

    #[test]
    fn pauses_double_and_never_outlast_the_holder() {
        let (mut machine, _) = begin(Patience::Forever);
        let mut now = at(0);
        let mut pauses = Vec::new();
        let mut reply = busy(1000 * SECOND);
        for _ in 0..8 {
            let step = machine.answer(now, reply, now);
            assert!(matches!(queueless(&mut machine, step, now), Step::Wait));
            let wake = machine.wake_at().expect("a moment");
            pauses.push((wake - now).as_millis());
            now = wake;
            assert!(matches!(machine.timer(now), Step::Ask(Call::Look(_))));
            reply = looked_busy(1000 * SECOND);
        }
        for (pause, whole) in pauses
            .iter()
            .zip([200, 400, 800, 1600, 3200, 3200, 3200, 3200])
        {
            assert!(
                (whole * 3 / 4..=whole * 5 / 4).contains(pause),
                "{pauses:?}"
            );
        }
        let step = machine.answer(now, looked_busy(SECOND), now);
        assert!(matches!(queueless(&mut machine, step, now), Step::Wait));
        assert!(machine.wake_at().expect("a moment") <= now + SECOND + SECOND / 100);
    }

    #[test]
    fn waiting_ends_in_time_with_a_last_look() {
        let (mut machine, _) = begin(Patience::For(SECOND));
        let mut now = at(0);
        let mut step = machine.answer(now, busy(1000 * SECOND), now);
        while !matches!(step, Step::Ask(Call::Forget(..))) {
            assert!(matches!(queueless(&mut machine, step, now), Step::Wait));
            now = machine.wake_at().expect("a moment");
            assert!(now <= at(1000));
            assert!(matches!(machine.timer(now), Step::Ask(Call::Look(_))));
            step = machine.answer(now, looked_busy(1000 * SECOND), now);
        }
        assert_eq!(now, at(1000));
        // The wait is taken out of the table.
        let step = machine.answer(now, Reply::Forgot(Ok(())), now);
        assert!(matches!(step, Step::End(Refusal::Busy(_))));
    }

    #[test]
    fn after_a_look_at_a_free_key_comes_an_attempt() {
        let (mut machine, _) = begin(Patience::Forever);
        let step = machine.answer(at(0), busy(SECOND), at(0));
        assert!(matches!(queueless(&mut machine, step, at(0)), Step::Wait));
        let now = machine.wake_at().expect("a moment");
        assert!(matches!(machine.timer(now), Step::Ask(Call::Look(_))));
        let step = machine.answer(now, Reply::Looked(Ok(Vec::new())), now);
        request(step);
    }

    #[test]
    fn an_unknown_outcome_is_tried_anew_and_cleaned_up() {
        let (mut machine, first) = begin(Patience::None);
        assert!(matches!(
            machine.answer(at(0), lost_reply(), at(5)),
            Step::Wait
        ));
        let now = machine.wake_at().expect("a moment");
        let second = request(machine.timer(now));
        assert_eq!(second.former, std::slice::from_ref(&first.owner));
        assert_ne!(second.owner, first.owner);
        // Its own leftover is not "busy".
        let own = Reply::Acquired(Ok(Acquired::Busy(vec![row(&first.owner, SECOND)])));
        let third = request(machine.answer(now, own, now));
        assert_eq!(third.former, std::slice::from_ref(&first.owner));
        // Before it gives up it removes what it may have left.
        let step = machine.answer(now, busy(SECOND), now);
        assert!(matches!(step, Step::Ask(Call::Forget(_, owners)) if owners == [first.owner]));
        let step = machine.answer(now, Reply::Forgot(Ok(())), now);
        assert!(matches!(step, Step::End(Refusal::Busy(_))));
    }

    #[test]
    fn its_own_row_is_recognised() {
        let (mut machine, first) = begin(Patience::None);
        let own = Reply::Acquired(Ok(Acquired::Busy(vec![row(&first.owner, SECOND)])));
        let second = request(machine.answer(at(0), own, at(5)));
        assert_eq!(second.former, [first.owner]);
    }

    #[test]
    fn read_only_is_final_unless_it_was_seen_to_be_otherwise() {
        let read_only = || StoreError::ReadOnly("a replica".into());
        let (mut machine, _) = begin(Patience::Forever);
        let first = Reply::Acquired(Err(StoreError::Transient("the first host".into())));
        assert!(matches!(machine.answer(at(0), first, at(1)), Step::Wait));
        let now = machine.wake_at().expect("a moment");
        request(machine.timer(now));
        let step = machine.answer(now, Reply::Acquired(Err(read_only())), now);
        assert!(matches!(
            step,
            Step::End(Refusal::Failed(StoreError::ReadOnly(_)))
        ));

        let (mut machine, _) = begin(Patience::Forever);
        let step = machine.answer(at(0), busy(SECOND), at(0));
        queueless(&mut machine, step, at(0));
        let now = machine.wake_at().expect("a moment");
        machine.timer(now);
        let step = machine.answer(now, Reply::Looked(Err(read_only())), now);
        assert!(matches!(step, Step::Wait), "a failover passes");
    }

    #[test]
    fn errors_end_by_the_time_of_a_first_contact() {
        let (mut machine, _) = begin(Patience::None);
        let mut now = at(0);
        loop {
            let deadlock = Reply::Acquired(Err(StoreError::Transient("1213".into())));
            match machine.answer(now, deadlock, now) {
                Step::Wait => now = machine.wake_at().expect("a moment"),
                Step::End(Refusal::Failed(StoreError::Transient(_))) => break,
                other => panic!("{other:?}"),
            }
            request(machine.timer(now));
        }
        assert!(now >= at(5000) && now < at(6000), "{now:?}");
    }

    #[test]
    fn what_needs_somebody_to_act_is_final() {
        for error in [
            StoreError::Denied(String::new()),
            StoreError::Schema(String::new()),
            StoreError::ReadOnly(String::new()),
        ] {
            let (mut machine, _) = begin(Patience::Forever);
            let step = machine.answer(at(0), Reply::Acquired(Err(error)), at(1));
            assert!(matches!(step, Step::End(Refusal::Failed(_))));
        }
    }

    #[test]
    fn a_server_that_does_not_answer_is_given_up() {
        let (mut machine, _) = begin(Patience::Forever);
        assert_eq!(machine.wake_at(), Some(at(5000)));
        assert!(matches!(machine.timer(at(5000)), Step::Cancel));
        assert_eq!(machine.wake_at(), Some(at(6000)));
        let step = machine.timer(at(6000));
        assert!(matches!(
            step,
            Step::End(Refusal::Failed(StoreError::Unreachable(_)))
        ));

        // What the dropped call may have left is removed.
        let (mut machine, dropped) = begin(Patience::None);
        assert!(matches!(machine.timer(at(5000)), Step::Cancel));
        let step = machine.answer(at(0), lost_reply(), at(5100));
        assert!(matches!(step, Step::Ask(Call::Forget(_, owners)) if owners == [dropped.owner]));

        // A grant that comes too late is given back.
        let (mut machine, request) = begin(Patience::None);
        assert!(matches!(machine.timer(at(5000)), Step::Cancel));
        let step = machine.answer(at(0), granted(&request), at(5100));
        assert!(matches!(step, Step::Ask(Call::Release(..))));
    }

    #[test]
    fn a_waiter_rides_out_an_outage() {
        let (mut machine, _) = begin(Patience::Forever);
        let step = machine.answer(at(0), busy(SECOND), at(0));
        assert!(matches!(queueless(&mut machine, step, at(0)), Step::Wait));
        let mut now = machine.wake_at().expect("a moment");
        assert!(matches!(machine.timer(now), Step::Ask(Call::Look(_))));
        let mut reply = Reply::Looked(Err(StoreError::Unreachable("down".into())));
        for _ in 0..100 {
            assert!(matches!(machine.answer(now, reply, now), Step::Wait));
            now = machine.wake_at().expect("a moment");
            request(machine.timer(now));
            reply = Reply::Acquired(Err(StoreError::Unreachable("down".into())));
        }
        assert!(now > at(30_000));
    }

    #[test]
    fn a_signal_ends_the_waiting_and_gives_a_late_grant_back() {
        let (mut machine, _) = begin(Patience::Forever);
        let step = machine.answer(at(0), busy(SECOND), at(0));
        assert!(matches!(queueless(&mut machine, step, at(0)), Step::Wait));
        let step = machine.signal(Sig::Term, at(1));
        assert!(matches!(step, Step::Ask(Call::Forget(_, ids)) if ids.len() == 1));
        let step = machine.answer(at(1), Reply::Forgot(Ok(())), at(2));
        assert!(matches!(step, Step::End(Refusal::Interrupted(Sig::Term))));

        let (mut machine, request) = begin(Patience::Forever);
        assert!(matches!(machine.signal(Sig::Int, at(1)), Step::Cancel));
        assert_eq!(machine.wake_at(), Some(at(1001)));
        let step = machine.answer(at(0), granted(&request), at(500));
        assert!(matches!(step, Step::Ask(Call::Release(..))));
        let step = machine.answer(
            at(500),
            Reply::Released(Ok(crate::store::Released::Released)),
            at(501),
        );
        assert!(matches!(step, Step::End(Refusal::Interrupted(Sig::Int))));

        // The connection may be dropped just when the lease is given back.
        let (mut machine, request) = begin(Patience::Forever);
        assert!(matches!(machine.signal(Sig::Int, at(1)), Step::Cancel));
        let step = machine.answer(at(0), granted(&request), at(2));
        assert!(matches!(step, Step::Ask(Call::Release(..))));
        let cut = Reply::Released(Err(StoreError::Unavailable("killed".into())));
        let step = machine.answer(at(2), cut, at(3));
        assert!(matches!(step, Step::Ask(Call::Release(..))));

        let (mut machine, dropped) = begin(Patience::Forever);
        assert!(matches!(machine.signal(Sig::Int, at(1)), Step::Cancel));
        let step = machine.answer(at(0), lost_reply(), at(300));
        assert!(matches!(step, Step::Ask(Call::Forget(_, owners)) if owners == [dropped.owner]));

        let (mut machine, _) = begin(Patience::Forever);
        assert!(matches!(machine.signal(Sig::Int, at(1)), Step::Cancel));
        let step = machine.timer(at(1001));
        assert!(matches!(step, Step::End(Refusal::Interrupted(Sig::Int))));
    }
}
