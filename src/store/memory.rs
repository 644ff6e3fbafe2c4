//! A store in memory, for tests and models of everything that stands above the
//! stores: it means the same as the others, its clock can be moved by hand,
//! and each client can be told which of its calls go wrong, and how.
//!
//! This module must not know URLs, and no URL leads to it: what it holds ends
//! with its process and so excludes nobody. It must not know either who calls,
//! nor take a retry for a repetition: every call is a new one to a server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    Acquired, End, Initialized, Place, Released, Renewed, Revive, Store, StoreError, Turn,
    WAITER_FORGOTTEN, Waited,
};
use crate::clock::{self, Tick};
use crate::lock::{
    BLOCK_SLOT, Claimant, Grant, Holder, Key, Kind, Moments, Owner, Phase, Request, State, Token,
    Ttl, Waiter, to_millis,
};

/// The time of day at which every world begins, in milliseconds since 1970
/// UTC. A fixed one: the real time of day would make two runs of a test differ.
const BEGIN_MS: i64 = 1_000_000_000_000;

/// What a client hears when its connection breaks: the same whether its call
/// arrived or not, since no client can tell.
const BROKEN: &str = "the connection to the memory store broke before the answer came";

/// The server: the rows, the counter of tokens, and the clock that decides.
/// Its clones are the same server.
#[derive(Clone, Debug)]
pub struct MemoryWorld(Arc<World>);

#[derive(Debug)]
struct World {
    inside: Mutex<Inside>,
    /// Notified when the clock is moved by hand.
    moved: Condvar,
}

#[derive(Debug)]
struct Inside {
    table: Table,
    time: Time,
    delayed: usize,
}

/// The world's clock: how far it was moved by hand and, if it also runs by
/// itself, since when.
#[derive(Debug)]
struct Time {
    running_since: Option<Tick>,
    moved: Duration,
}

impl Time {
    fn now(&self) -> Tick {
        let ran = self
            .running_since
            .map_or(Duration::ZERO, |since| clock::now() - since);
        Tick::from_boot(self.moved + ran)
    }
}

impl MemoryWorld {
    /// Returns an empty world whose clock runs.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Some(clock::now()))
    }

    /// Returns an empty world whose clock stands still but for
    /// [`advance`](Self::advance).
    #[must_use]
    pub fn manual() -> Self {
        Self::with_clock(None)
    }

    fn with_clock(running_since: Option<Tick>) -> Self {
        Self(Arc::new(World {
            inside: Mutex::new(Inside {
                table: Table::default(),
                time: Time {
                    running_since,
                    moved: Duration::ZERO,
                },
                delayed: 0,
            }),
            moved: Condvar::new(),
        }))
    }

    /// Moves the world's clock ahead. Calls whose delay is over by then go on.
    pub fn advance(&self, by: Duration) {
        self.lock().time.moved += by;
        self.0.moved.notify_all();
    }

    /// Returns a new client without any faults.
    #[must_use]
    pub fn connect(&self) -> MemoryStore {
        MemoryStore {
            world: self.clone(),
            script: Script::default(),
        }
    }

    /// Returns the number of calls that a delay is holding up right now: a
    /// test waits for it before it moves the clock past the delay.
    #[must_use]
    pub fn delayed(&self) -> usize {
        self.lock().delayed
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        // A test that panics must not take down its other threads with it.
        self.0.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `length` of the world's time.
    fn wait(&self, length: Duration) {
        if length.is_zero() {
            return;
        }
        let mut inside = self.lock();
        let end = inside.time.now() + length;
        inside.delayed += 1;
        loop {
            let left = end - inside.time.now();
            if left.is_zero() {
                break;
            }
            let moved = &self.0.moved;
            inside = if inside.time.running_since.is_some() {
                let woken = moved.wait_timeout(inside, left);
                woken.unwrap_or_else(PoisonError::into_inner).0
            } else {
                moved.wait(inside).unwrap_or_else(PoisonError::into_inner)
            };
        }
        inside.delayed -= 1;
    }
}

impl Default for MemoryWorld {
    fn default() -> Self {
        Self::new()
    }
}

/// Something that goes wrong with a call.
#[derive(Debug)]
pub enum Fault {
    /// The call is carried out only after this time of the world.
    DelayRequest(Duration),
    /// The call is carried out at once, and its answer comes after this time
    /// of the world.
    DelayReply(Duration),
    /// Nothing: lets one call through.
    Pass,
    /// The call is not carried out, and answered by this error.
    Refuse(StoreError),
    /// The call is not carried out, and the outcome is unknown to the caller.
    LoseRequest,
    /// The call is carried out, and the outcome is unknown to the caller.
    LoseReply,
}

/// What will go wrong with the next calls of one client; a handle that can be
/// kept when the client itself has been given away.
///
/// A call takes from the front all delays and the first fault that is none.
/// To delay two calls in a row, put [`Fault::Pass`] between the delays. When
/// nothing is left, calls succeed.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<VecDeque<Fault>>>);

impl Script {
    /// Appends a fault.
    pub fn then(&self, fault: Fault) -> &Self {
        self.lock().push_back(fault);
        self
    }

    /// Tells whether all faults have been taken by calls.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_call(&self) -> Fate {
        let mut faults = self.lock();
        let mut fate = Fate {
            before: Duration::ZERO,
            after: Duration::ZERO,
            applied: true,
            error: None,
        };
        while let Some(fault) = faults.pop_front() {
            match fault {
                Fault::DelayRequest(length) => {
                    fate.before += length;
                    continue;
                }
                Fault::DelayReply(length) => {
                    fate.after += length;
                    continue;
                }
                Fault::Pass => {}
                Fault::Refuse(error) => {
                    fate.applied = false;
                    fate.error = Some(error);
                }
                Fault::LoseRequest => {
                    fate.applied = false;
                    fate.error = Some(StoreError::Unavailable(BROKEN.into()));
                }
                Fault::LoseReply => fate.error = Some(StoreError::Unavailable(BROKEN.into())),
            }
            break;
        }
        fate
    }
}

/// What becomes of one call.
struct Fate {
    before: Duration,
    after: Duration,
    applied: bool,
    error: Option<StoreError>,
}

/// A client of a [`MemoryWorld`].
#[derive(Debug)]
pub struct MemoryStore {
    world: MemoryWorld,
    script: Script,
}

impl MemoryStore {
    /// Returns the handle to this client's faults.
    #[must_use]
    pub fn script(&self) -> Script {
        self.script.clone()
    }

    fn call<T>(&self, apply: impl FnOnce(&mut Table, Tick) -> T) -> Result<T, StoreError> {
        let fate = self.script.next_call();
        self.world.wait(fate.before);
        let answer = fate.applied.then(|| {
            let mut inside = self.world.lock();
            let now = inside.time.now();
            apply(&mut inside.table, now)
        });
        self.world.wait(fate.after);
        match (fate.error, answer) {
            (None, Some(answer)) => Ok(answer),
            (Some(error), _) => Err(error),
            (None, None) => Err(StoreError::Unavailable(BROKEN.into())),
        }
    }
}

impl Store for MemoryStore {
    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError> {
        self.call(|table, now| table.acquire(request, now))
    }

    fn renew(&mut self, grant: &Grant, ttl: Ttl, revive: Revive) -> Result<Renewed, StoreError> {
        self.call(|table, now| table.renew(grant, ttl, revive, now))
    }

    fn release(&mut self, grant: &Grant, end: End) -> Result<Released, StoreError> {
        self.call(|table, now| table.release(grant, end, now))
    }

    fn wait(&mut self, waiter: &Waiter, _: Duration) -> Result<Waited, StoreError> {
        self.call(|table, now| table.wait(waiter, now))
    }

    fn waiters(&mut self, key: Option<&Key>) -> Result<Vec<Waiter>, StoreError> {
        self.call(|table, now| table.waiters(key, now))
    }

    fn block(
        &mut self,
        key: &Key,
        length: Option<Duration>,
        claimant: &Claimant,
    ) -> Result<(), StoreError> {
        self.call(|table, now| table.block(key, length, claimant, now))
    }

    fn unblock(&mut self, key: &Key) -> Result<bool, StoreError> {
        self.call(|table, now| table.unblock(key, now))
    }

    fn forget(&mut self, key: &Key, owners: &[Owner]) -> Result<(), StoreError> {
        self.call(|table, _| table.forget(key, owners))
    }

    fn holders(&mut self, key: Option<&Key>) -> Result<Vec<Holder>, StoreError> {
        self.call(|table, now| table.holders(key, now))
    }

    fn init(&mut self) -> Result<Initialized, StoreError> {
        // The table came with the world.
        self.call(|_, _| Initialized::Unchanged)
    }
}

/// The rows and the counter. It has no clock: each call brings the moment.
#[derive(Debug, Default)]
struct Table {
    /// Ordered as `holders` answers.
    rows: BTreeMap<(Key, u16), Row>,
    /// The last token given. It never falls, whatever becomes of the rows.
    last_token: u64,
    /// In the order of arrival, each with when it came and was last seen.
    waiters: Vec<(Waiter, Tick, Tick)>,
}

#[derive(Debug)]
struct Row {
    owner: Owner,
    token: Token,
    kind: Kind,
    claimant: Claimant,
    slots: u16,
    phase: Phase,
    granted_at: Tick,
    expires_at: Tick,
    delay: Duration,
    keep_until: Tick,
    done_until: Tick,
    ttl: Duration,
    renewals: u64,
}

impl Row {
    fn is_of(&self, grant: &Grant) -> bool {
        self.owner == grant.owner && self.token == grant.token
    }

    /// Returns the state and what is left of it.
    fn state(&self, now: Tick) -> Option<(State, Duration)> {
        let nanos = |length: Duration| i64::try_from(length.as_nanos()).unwrap_or(i64::MAX);
        let moments = Moments {
            phase: self.phase,
            lease: nanos(self.expires_at - now) - nanos(now - self.expires_at),
            delay: nanos(self.delay),
            keep: nanos(self.keep_until - now),
            done: nanos(self.done_until - now),
        };
        let (state, left) = moments.state()?;
        Some((state, Duration::from_nanos(left)))
    }

    fn show(&self, key: &Key, slot: u16, now: Tick) -> Option<Holder> {
        let (state, remaining) = self.state(now)?;
        let granted_ms = i64::try_from(to_millis(self.granted_at.since_boot())).ok();
        Some(Holder {
            grant: Grant {
                key: key.clone(),
                slot,
                owner: self.owner.clone(),
                token: self.token,
            },
            state,
            kind: self.kind,
            slots: self.slots,
            claimant: self.claimant.clone(),
            acquired_at: granted_ms.and_then(|ms| ms.checked_add(BEGIN_MS)),
            held: now - self.granted_at,
            remaining,
            ttl: self.ttl,
            renewals: self.renewals,
        })
    }
}

impl Table {
    fn acquire(&mut self, request: &Request, now: Tick) -> Acquired {
        self.forget(&request.key, &request.former);
        let place = (request.key.clone(), request.slot);
        let before = self.rows.get(&place).and_then(|row| row.state(now));
        let rows = self.holders(Some(&request.key), now);
        if before.is_some_and(|(state, _)| state.excludes(&request.terms)) {
            return Acquired::Busy(rows);
        }
        let terms = &request.terms;
        let token = self.next_token();
        self.rows.insert(
            place,
            Row {
                owner: request.owner.clone(),
                token,
                kind: request.kind,
                claimant: request.claimant.clone(),
                slots: terms.slots,
                phase: Phase::Held,
                granted_at: now,
                expires_at: now + request.ttl.get(),
                delay: terms.lock_delay,
                keep_until: now + terms.at_least,
                done_until: now + terms.once_per.unwrap_or_default(),
                ttl: request.ttl.get(),
                renewals: 0,
            },
        );
        let grant = Grant {
            key: request.key.clone(),
            slot: request.slot,
            owner: request.owner.clone(),
            token,
        };
        Acquired::granted(grant, request, rows)
    }

    fn next_token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    fn own(&mut self, grant: &Grant) -> Option<&mut Row> {
        let place = (grant.key.clone(), grant.slot);
        self.rows.get_mut(&place).filter(|row| row.is_of(grant))
    }

    fn renew(&mut self, grant: &Grant, ttl: Ttl, revive: Revive, now: Tick) -> Renewed {
        let own = self.own(grant).filter(|row| {
            row.phase == Phase::Held && (revive == Revive::Allowed || row.expires_at > now)
        });
        let Some(row) = own else {
            return Renewed::Lost(self.holders(Some(&grant.key), now));
        };
        row.expires_at = now + ttl.get();
        row.ttl = ttl.get();
        row.renewals += 1;
        Renewed::Extended
    }

    fn release(&mut self, grant: &Grant, end: End, now: Tick) -> Released {
        let Some(row) = self.own(grant) else {
            return Released::NotHeld;
        };
        if let End::Finished { succeeded } = end {
            let was_held = row.phase == Phase::Held;
            let stays = row.keep_until > now || succeeded && row.done_until > now;
            if stays && !was_held {
                return Released::NotHeld;
            }
            if stays {
                row.phase = if succeeded {
                    Phase::Done
                } else {
                    Phase::Released
                };
                row.expires_at = row.expires_at.min(now);
                row.delay = Duration::ZERO;
                return Released::Released;
            }
        }
        self.rows.remove(&(grant.key.clone(), grant.slot));
        Released::Released
    }

    fn holders(&self, key: Option<&Key>, now: Tick) -> Vec<Holder> {
        self.rows
            .iter()
            .filter(|((of, _), _)| key.is_none_or(|key| key == of))
            .filter_map(|((key, slot), row)| row.show(key, *slot, now))
            .collect()
    }

    fn wait(&mut self, waiter: &Waiter, now: Tick) -> Waited {
        self.waiters
            .retain(|(other, _, seen)| other.id == waiter.id || now - *seen < WAITER_FORGOTTEN);
        let known = self
            .waiters
            .iter_mut()
            .find(|(other, ..)| other.id == waiter.id);
        match known {
            Some((_, _, seen)) => *seen = now,
            None => self.waiters.push((waiter.clone(), now, now)),
        }
        let of_key = self
            .waiters
            .iter()
            .filter(|(other, ..)| other.key == waiter.key);
        let ids: Vec<&Owner> = of_key.map(|(other, ..)| &other.id).collect();
        let ahead = ids.iter().take_while(|id| **id != &waiter.id).count();
        Waited {
            turn: Turn::NoQueue,
            place: Some(Place {
                ahead: ahead as u64,
                waiting: ids.len() as u64,
            }),
        }
    }

    fn waiters(&self, key: Option<&Key>, now: Tick) -> Vec<Waiter> {
        let mut waiters: Vec<Waiter> = self
            .waiters
            .iter()
            .filter(|(waiter, ..)| key.is_none_or(|key| *key == waiter.key))
            .filter(|(.., seen)| now - *seen < WAITER_FORGOTTEN)
            .map(|(waiter, came, _)| Waiter {
                waiting: waiter.waiting + (now - *came),
                ..waiter.clone()
            })
            .collect();
        waiters.sort_by(|one, other| one.key.cmp(&other.key));
        waiters
    }

    fn block(&mut self, key: &Key, length: Option<Duration>, claimant: &Claimant, now: Tick) {
        let token = self.next_token();
        let row = Row {
            owner: Owner::generate(),
            token,
            kind: Kind::Block,
            claimant: claimant.clone(),
            slots: 0,
            phase: Phase::Blocked,
            granted_at: now,
            expires_at: now + length.unwrap_or(FOR_EVER),
            delay: Duration::ZERO,
            keep_until: now,
            done_until: now,
            ttl: Duration::ZERO,
            renewals: 0,
        };
        self.rows.insert((key.clone(), BLOCK_SLOT), row);
    }

    fn unblock(&mut self, key: &Key, now: Tick) -> bool {
        let row = self.rows.remove(&(key.clone(), BLOCK_SLOT));
        row.is_some_and(|row| row.state(now).is_some())
    }

    /// Removes the rows of these owners under the key, whatever their tokens.
    fn forget(&mut self, key: &Key, owners: &[Owner]) {
        self.rows
            .retain(|(of, _), row| of != key || !owners.contains(&row.owner));
        self.waiters
            .retain(|(waiter, ..)| !owners.contains(&waiter.id));
    }
}

/// The length of a block without an end.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64 * 60);

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::lock::Terms;

    const SECOND: Duration = Duration::from_secs(1);

    fn request(former: &[&Owner]) -> Request {
        Request {
            key: Key::new("k").expect("a key"),
            slot: 0,
            ttl: Ttl::new(10 * SECOND).expect("a TTL"),
            terms: Terms::default(),
            owner: Owner::generate(),
            former: former.iter().copied().cloned().collect(),
            kind: Kind::Run,
            claimant: Claimant::default(),
        }
    }

    fn granted(answer: Result<Acquired, StoreError>) -> Grant {
        match answer {
            Ok(Acquired::Granted(grant)) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn rows(world: &MemoryWorld) -> Vec<Holder> {
        world.connect().holders(None).expect("no faults")
    }

    /// Waits until a delay holds up a call, and then moves the clock.
    fn advance_past_delay(world: &MemoryWorld, by: Duration) {
        let limit = clock::now() + 10 * SECOND;
        while world.delayed() == 0 {
            assert!(clock::now() < limit, "no call was delayed");
            thread::yield_now();
        }
        world.advance(by);
    }

    #[test]
    fn leases_end_by_the_worlds_clock_to_the_instant() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let first = granted(store.acquire(&request(&[])));
        world.advance(10 * SECOND - Duration::from_nanos(1));
        assert_eq!(rows(&world)[0].state, State::Held);
        assert_eq!(rows(&world)[0].remaining, Duration::from_nanos(1));
        assert!(matches!(
            store.acquire(&request(&[])),
            Ok(Acquired::Busy(_))
        ));
        world.advance(Duration::from_nanos(1));
        assert_eq!(rows(&world)[0].state, State::Expired);
        assert_eq!(rows(&world)[0].remaining, Duration::ZERO);
        assert_eq!(rows(&world)[0].held, 10 * SECOND);
        let second = granted(store.acquire(&request(&[])));
        assert!(second.token > first.token);
    }

    #[test]
    fn faults_are_taken_in_order_one_a_call() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let script = store.script();
        script
            .then(Fault::Pass)
            .then(Fault::Refuse(StoreError::ReadOnly("a replica".into())))
            .then(Fault::LoseRequest);
        assert_eq!(store.holders(None).expect("passes"), []);
        assert!(matches!(store.init(), Err(StoreError::ReadOnly(text)) if text == "a replica"));
        assert!(!script.is_over());
        assert!(matches!(store.init(), Err(StoreError::Unavailable(_))));
        assert!(script.is_over());
        assert!(matches!(store.init(), Ok(Initialized::Unchanged)));
    }

    #[test]
    fn refused_and_lost_requests_change_nothing() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        store
            .script()
            .then(Fault::Refuse(StoreError::Transient("later".into())))
            .then(Fault::LoseRequest);
        let refused = store.acquire(&request(&[])).expect_err("refused");
        assert!(!refused.outcome_unknown() && refused.may_pass());
        let lost = store.acquire(&request(&[])).expect_err("lost");
        assert!(lost.outcome_unknown());
        assert_eq!(rows(&world), []);
    }

    #[test]
    fn a_lost_reply_leaves_what_the_next_attempt_removes() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        store.script().then(Fault::LoseReply);
        let first = request(&[]);
        let lost = store.acquire(&first).expect_err("lost");
        assert!(lost.outcome_unknown());
        assert_eq!(rows(&world)[0].grant.owner, first.owner);
        assert!(matches!(
            store.acquire(&request(&[])),
            Ok(Acquired::Busy(_))
        ));
        let grant = granted(store.acquire(&request(&[&first.owner])));
        assert_eq!(rows(&world).len(), 1);
        assert_eq!(rows(&world)[0].grant, grant);
    }

    #[test]
    fn lost_replies_sound_like_lost_requests() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        store
            .script()
            .then(Fault::LoseReply)
            .then(Fault::LoseRequest);
        let texts = [0, 1].map(|_| store.init().expect_err("lost").to_string());
        assert_eq!(texts[0], texts[1]);
    }

    #[test]
    fn a_late_request_gets_its_lease_late_and_a_late_reply_early() {
        for (fault, left) in [
            (Fault::DelayRequest(4 * SECOND), 10),
            (Fault::DelayReply(4 * SECOND), 6),
        ] {
            let world = MemoryWorld::manual();
            let mut store = world.connect();
            store.script().then(fault);
            thread::scope(|scope| {
                scope.spawn(|| granted(store.acquire(&request(&[]))));
                advance_past_delay(&world, 3 * SECOND);
                assert_eq!(world.delayed(), 1, "the delay is not over");
                world.advance(SECOND);
            });
            assert_eq!(world.delayed(), 0);
            assert_eq!(rows(&world)[0].remaining, left * SECOND);
        }
    }

    #[test]
    fn delays_add_up_and_come_with_the_fault_behind_them() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let script = store.script();
        script
            .then(Fault::DelayRequest(SECOND))
            .then(Fault::DelayRequest(SECOND))
            .then(Fault::LoseReply)
            .then(Fault::Pass);
        thread::scope(|scope| {
            let call = scope.spawn(|| store.acquire(&request(&[])));
            advance_past_delay(&world, 2 * SECOND);
            assert!(call.join().expect("no panic").is_err());
        });
        assert_eq!(rows(&world)[0].held, Duration::ZERO);
        assert!(!script.is_over(), "the last fault is for the next call");
    }

    #[test]
    fn faults_hit_their_own_client_only() {
        let world = MemoryWorld::manual();
        let mut hit = world.connect();
        let mut spared = world.connect();
        hit.script().then(Fault::LoseRequest);
        assert!(spared.init().is_ok());
        assert!(hit.init().is_err());
    }

    #[test]
    fn a_running_clock_runs_and_ends_delays_by_itself() {
        let world = MemoryWorld::new();
        let mut store = world.connect();
        let delay = Duration::from_millis(20);
        store.script().then(Fault::DelayReply(delay));
        granted(store.acquire(&request(&[])));
        let row = &rows(&world)[0];
        assert!(row.held >= delay);
        assert_eq!(row.held + row.remaining, 10 * SECOND);
    }
}
