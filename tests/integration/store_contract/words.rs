//! The part of the contract about what can be asked for beyond a key and a
//! TTL: slots, times for which a key stays shut, blocks, and waiters.

use std::time::Duration;

use dblock::clock;
use dblock::lock::{
    BLOCK_SLOT, Claimant, Grant, Holder, Kind, Owner, Request, State, Terms, Token, Waiter,
};
use dblock::store::memory::MemoryWorld;
use dblock::store::{Acquired, End, Place, Released, Revive, Store, WAITER_FORGOTTEN};

use super::{
    Bench, DONE, ROUNDING, acquire, assert_powerless, assert_untouched, await_expiry, busy, extend,
    key, long, lost, only, release, request, rows, seconds,
};
use crate::support::wait;

/// How a job that has failed gives its lease back.
const FAILED: End = End::Finished { succeeded: false };

/// Times that no test outlives, each with its own.
const AN_HOUR: Duration = Duration::from_secs(3600);
const A_DAY: Duration = Duration::from_secs(24 * 3600);

fn under(terms: Terms, request: Request) -> Request {
    Request { terms, ..request }
}

fn in_slot(slot: u16, slots: u16, request: Request) -> Request {
    let terms = Terms {
        slots,
        ..request.terms
    };
    Request {
        slot,
        terms,
        ..request
    }
}

fn once_per(length: Duration) -> Terms {
    Terms {
        once_per: Some(length),
        ..Terms::default()
    }
}

fn at_least(length: Duration) -> Terms {
    Terms {
        at_least: length,
        ..Terms::default()
    }
}

fn lock_delay(length: Duration) -> Terms {
    Terms {
        lock_delay: length,
        ..Terms::default()
    }
}

/// Asks for what is granted only to be given back, gives it back, and returns
/// it and the rows of others that stand beside it.
fn contested(store: &mut dyn Store, request: &Request) -> (Grant, Vec<Holder>) {
    let (grant, rows) = match store.acquire(request) {
        Ok(Acquired::Contested(grant, rows)) => (grant, rows),
        other => panic!("{} was not contested: {other:?}", request.key),
    };
    assert_eq!((&grant.owner, grant.slot), (&request.owner, request.slot));
    assert_eq!(
        store.release(&grant, End::Dropped).expect("an answer"),
        Released::Released
    );
    let rows = rows.into_iter().filter(|row| row.grant != grant).collect();
    (grant, rows)
}

/// Gives back what is held.
fn finish(store: &mut dyn Store, grant: &Grant, end: End) {
    let answer = store.release(grant, end).expect("an answer");
    assert_eq!(answer, Released::Released);
}

/// Asserts that of `length`, which began between the grant and now, the right
/// rest is left.
fn assert_rest(row: &Holder, length: Duration) {
    let passed = row.held + ROUNDING;
    assert!(
        row.remaining <= length && row.remaining + passed >= length,
        "{length:?}: {row:?}"
    );
}

// Slots.

pub(super) fn slots_are_rows_of_their_own(bench: &dyn Bench) {
    let mut store = bench.open();
    let ask = |slot| in_slot(slot, 3, request("k", long()));
    let mut grants: Vec<Grant> = Vec::new();
    for slot in [2, 0, 1] {
        let grant = acquire(store.as_mut(), &ask(slot));
        let last = grants.last().map_or(Token(0), |grant| grant.token);
        assert!(grant.token > last, "{grant:?} after {last}");
        grants.push(grant);
    }
    grants.sort_by_key(|grant| grant.slot);
    let shown = rows(bench.open().as_mut(), "k");
    let held: Vec<_> = shown.iter().map(|row| row.grant.clone()).collect();
    assert_eq!(held, grants, "by slot");
    assert!(shown.iter().all(|row| row.slots == 3), "{shown:?}");
    for slot in 0..3 {
        assert_untouched(&shown, &busy(store.as_mut(), &ask(slot)));
    }

    // Each is renewed and released without the others.
    extend(store.as_mut(), &grants[0], seconds(60), Revive::Refused);
    assert_untouched(&shown[1..], &rows(store.as_mut(), "k")[1..]);
    release(store.as_mut(), &grants[1]);
    let left: Vec<_> = rows(store.as_mut(), "k")
        .into_iter()
        .map(|row| row.grant)
        .collect();
    assert_eq!(left, [grants[0].clone(), grants[2].clone()]);
    busy(store.as_mut(), &ask(0));
    let again = acquire(store.as_mut(), &ask(1));
    assert!(again.token > grants.iter().map(|grant| grant.token).max().expect("three"));
}

pub(super) fn another_number_of_slots_is_contested(bench: &dyn Bench) {
    let mut store = bench.open();
    let mut last = Token(0);
    for (slot, slots, other_slot, other_slots) in [(0, 1, 1, 2), (1, 2, 0, 1), (2, 3, 0, 4)] {
        let held = acquire(store.as_mut(), &in_slot(slot, slots, request("k", long())));
        assert!(held.token > last);
        let before = rows(store.as_mut(), "k");
        let mut other = bench.open();
        let ask = in_slot(other_slot, other_slots, request("k", long()));
        let (refused, beside) = contested(other.as_mut(), &ask);
        assert!(refused.token > held.token, "tokens rise all the same");
        last = refused.token;
        assert_untouched(&before, &beside);
        assert_untouched(&before, &rows(store.as_mut(), "k"));
        // The place itself is taken, whatever the number is.
        let ask = in_slot(slot, slots + 1, request("k", long()));
        assert_untouched(&before, &busy(other.as_mut(), &ask));
        // It concerns nobody else.
        let elsewhere = in_slot(other_slot, other_slots, request("other", long()));
        let elsewhere = acquire(other.as_mut(), &elsewhere);
        release(other.as_mut(), &elsewhere);
        release(store.as_mut(), &held);
    }

    // What is kept shut has a say like a holder.
    let terms = at_least(AN_HOUR);
    let closed = acquire(store.as_mut(), &under(terms, request("k", long())));
    finish(store.as_mut(), &closed, DONE);
    let (_, beside) = contested(store.as_mut(), &in_slot(1, 2, request("k", long())));
    assert_eq!(only(beside).grant, closed);
}

pub(super) fn an_expired_row_has_no_say_about_slots(bench: &dyn Bench) {
    let mut store = bench.open();
    acquire(store.as_mut(), &in_slot(1, 2, request("k", seconds(1))));
    await_expiry(store.as_mut(), "k");
    acquire(store.as_mut(), &request("k", long()));
}

// Blocks.

/// Somebody who blocks a key, and why.
fn operator(reason: Option<&str>) -> Claimant {
    Claimant {
        host: "desk-1".into(),
        pid: 7,
        user: "admin".into(),
        command: String::new(),
        note: reason.map(str::to_owned),
    }
}

/// Returns the row of the block among those of a key.
fn the_block(store: &mut dyn Store) -> Holder {
    let mut all = rows(store, "k");
    all.retain(|row| row.state == State::Blocked);
    only(all)
}

pub(super) fn a_block_refuses_new_grants_and_leaves_holders(bench: &dyn Bench) {
    let mut store = bench.open();
    let ask = |slot| in_slot(slot, 2, request("k", seconds(60)));
    let held = acquire(store.as_mut(), &ask(0));
    let before = rows(store.as_mut(), "k");
    let why = operator(Some("maintenance"));
    bench.open().block(&key("k"), None, &why).expect("a block");

    let row = the_block(store.as_mut());
    assert_eq!(row.kind, Kind::Block);
    assert_eq!(row.claimant, why);
    assert_eq!(row.grant.slot, BLOCK_SLOT);
    assert!(row.remaining > 1000 * A_DAY, "{row:?}");
    assert!(row.held < wait::LIMIT, "{row:?}");

    // A free slot is none, the other is taken, and its holder goes on.
    let (_, beside) = contested(bench.open().as_mut(), &ask(1));
    assert!(
        beside.iter().any(|row| row.state == State::Blocked),
        "{beside:?}"
    );
    assert_eq!(busy(store.as_mut(), &ask(0)).len(), 2);
    assert_untouched(&before, &rows(store.as_mut(), "k")[..1]);
    extend(store.as_mut(), &held, seconds(60), Revive::Refused);
    acquire(bench.open().as_mut(), &request("other", long()));

    // It outlives the holder, and nobody forgets it who does not mean it.
    release(store.as_mut(), &held);
    assert_eq!(only(rows(store.as_mut(), "k")).state, State::Blocked);
    contested(store.as_mut(), &ask(0));
    contested(store.as_mut(), &request("k", long()));
    assert_eq!(only(rows(store.as_mut(), "k")).state, State::Blocked);
}

pub(super) fn a_block_can_be_changed_and_taken_away(bench: &dyn Bench) {
    let mut store = bench.open();
    let k = key("k");
    assert!(!store.unblock(&k).expect("an answer"), "it was not blocked");
    let changes: [(Option<Duration>, Option<&str>); 4] = [
        (None, Some("first")),
        (Some(AN_HOUR), Some("second")),
        (Some(A_DAY), None),
        (None, Some("'; DROP TABLE dblock_lock; -- \u{1f600}")),
    ];
    for (length, reason) in changes {
        let mut other = bench.open();
        other.block(&k, length, &operator(reason)).expect("a block");
        let row = the_block(store.as_mut());
        assert_eq!(row.claimant.note.as_deref(), reason);
        match length {
            Some(length) => assert_rest(&row, length),
            None => assert!(row.remaining > 1000 * A_DAY, "{row:?}"),
        }
        assert_eq!(rows(store.as_mut(), "k").len(), 1, "it is one block");
    }
    acquire(store.as_mut(), &request("other", long()));
    assert!(!store.unblock(&key("other")).expect("an answer"));
    assert_eq!(
        rows(store.as_mut(), "other").len(),
        1,
        "a lease is no block"
    );

    assert!(bench.open().unblock(&k).expect("an answer"));
    assert!(!store.unblock(&k).expect("an answer"));
    assert_eq!(rows(store.as_mut(), "k"), []);
    acquire(store.as_mut(), &request("k", long()));
}

pub(super) fn a_block_ends_by_itself(bench: &dyn Bench) {
    const LENGTH: Duration = Duration::from_millis(700);
    let mut store = bench.open();
    let sent = clock::now();
    store
        .block(&key("k"), Some(LENGTH), &operator(None))
        .expect("a block");
    assert_rest(&the_block(store.as_mut()), LENGTH);
    wait::until("the block to end", || {
        match store.acquire(&request("k", long())).expect("an answer") {
            Acquired::Granted(_) => Ok(()),
            Acquired::Contested(grant, rows) => {
                finish(store.as_mut(), &grant, End::Dropped);
                Err(format!("{rows:?}"))
            }
            other @ Acquired::Busy(_) => panic!("{other:?}"),
        }
    });
    let passed = clock::now() - sent + ROUNDING;
    assert!(passed >= LENGTH, "ended after {passed:?}");
    assert_eq!(rows(store.as_mut(), "k").len(), 1, "it is not shown");
    assert!(
        !store.unblock(&key("k")).expect("an answer"),
        "it has ended"
    );
}

// What a release leaves.

pub(super) fn a_success_concerns_those_who_ask_for_once_per(bench: &dyn Bench) {
    let mut store = bench.open();
    let ask = || under(once_per(A_DAY), request("k", long()));
    let failed = acquire(store.as_mut(), &ask());
    finish(store.as_mut(), &failed, FAILED);
    assert_eq!(rows(store.as_mut(), "k"), [], "a failure does not count");

    let done = acquire(store.as_mut(), &ask());
    finish(store.as_mut(), &done, DONE);
    let row = only(busy(bench.open().as_mut(), &ask()));
    assert_eq!((row.state, &row.grant), (State::Done, &done));
    assert_rest(&row, A_DAY);
    // Also a shorter time than that of the one who succeeded.
    let shorter = under(once_per(Duration::from_secs(1)), request("k", long()));
    assert_eq!(only(busy(store.as_mut(), &shorter)).grant, done);

    let other = acquire(store.as_mut(), &request("k", long()));
    assert!(other.token > done.token);
    assert_eq!(only(rows(store.as_mut(), "k")).state, State::Held);
}

pub(super) fn a_success_beside_contests_a_free_slot(bench: &dyn Bench) {
    let mut store = bench.open();
    let ask = |slot| in_slot(slot, 2, under(once_per(A_DAY), request("k", long())));
    let done = acquire(store.as_mut(), &ask(0));
    finish(store.as_mut(), &done, DONE);
    let (_, beside) = contested(bench.open().as_mut(), &ask(1));
    let row = only(beside);
    assert_eq!((row.state, row.grant), (State::Done, done));
    let plain = in_slot(1, 2, request("k", long()));
    acquire(store.as_mut(), &plain);
    // Nor is another number of slots anything to those who do not ask.
    busy(store.as_mut(), &in_slot(1, 2, request("k", long())));
    acquire(store.as_mut(), &in_slot(0, 2, request("k", long())));
}

pub(super) fn a_release_leaves_what_its_terms_ask_for(bench: &dyn Bench) {
    let mut store = bench.open();
    let mut last = Token(0);
    for (terms, end, left) in outcomes() {
        let asked = under(terms, request("k", seconds(60)));
        let grant = acquire(store.as_mut(), &asked);
        assert!(grant.token > last);
        last = grant.token;
        finish(store.as_mut(), &grant, end);
        let rows = rows(bench.open().as_mut(), "k");
        match left {
            None => assert_eq!(rows, [], "{terms:?} {end:?}"),
            Some((state, length)) => {
                let row = only(rows);
                assert_eq!(
                    (row.state, &row.grant),
                    (state, &grant),
                    "{terms:?} {end:?}"
                );
                assert_eq!(row.claimant, asked.claimant);
                assert_rest(&row, length);
                finish(store.as_mut(), &grant, End::Dropped);
            }
        }
    }
}

/// Terms, how the job ended, and the row that is left: its state, and for how
/// long from the grant on.
type Left = (Terms, End, Option<(State, Duration)>);

fn outcomes() -> [Left; 8] {
    let both = Terms {
        at_least: AN_HOUR,
        ..once_per(A_DAY)
    };
    [
        (Terms::default(), DONE, None),
        (Terms::default(), FAILED, None),
        (at_least(AN_HOUR), DONE, Some((State::Closing, AN_HOUR))),
        (at_least(AN_HOUR), FAILED, Some((State::Closing, AN_HOUR))),
        (once_per(A_DAY), DONE, Some((State::Done, A_DAY))),
        (once_per(A_DAY), FAILED, None),
        (both, DONE, Some((State::Closing, AN_HOUR))),
        (both, FAILED, Some((State::Closing, AN_HOUR))),
    ]
}

pub(super) fn a_dropped_lease_leaves_nothing(bench: &dyn Bench) {
    let mut store = bench.open();
    let terms = Terms {
        at_least: AN_HOUR,
        lock_delay: AN_HOUR,
        ..once_per(A_DAY)
    };
    let grant = acquire(store.as_mut(), &under(terms, request("k", long())));
    finish(store.as_mut(), &grant, End::Dropped);
    assert_eq!(rows(store.as_mut(), "k"), []);
    // And what stays shut is removed by whoever means it.
    let grant = acquire(store.as_mut(), &under(terms, request("k", long())));
    finish(store.as_mut(), &grant, DONE);
    finish(bench.open().as_mut(), &grant, End::Dropped);
    assert_eq!(rows(store.as_mut(), "k"), []);
}

pub(super) fn a_closed_row_is_no_lease_any_more(bench: &dyn Bench) {
    for (terms, end) in [
        (at_least(AN_HOUR), DONE),
        (at_least(AN_HOUR), FAILED),
        (once_per(A_DAY), DONE),
    ] {
        let mut store = bench.open();
        let grant = acquire(store.as_mut(), &under(terms, request("k", long())));
        finish(store.as_mut(), &grant, end);
        // Neither renewed nor released again by its owner.
        assert_powerless(store.as_mut(), &grant);
        let again = store.release(&grant, end).expect("an answer");
        assert_eq!(again, Released::NotHeld, "{terms:?} {end:?}");
        assert_eq!(only(rows(store.as_mut(), "k")).grant, grant);
        finish(store.as_mut(), &grant, End::Dropped);
    }
}

// What a crash leaves.

/// Waits until a request is granted, and returns the grant. Until then only
/// this row stands in the way, in one of these states.
fn await_grant(
    store: &mut dyn Store,
    ask: impl Fn() -> Request,
    held: &Grant,
    states: &[State],
) -> Grant {
    wait::until("the key to be free", || {
        match store.acquire(&ask()).expect("an answer") {
            Acquired::Granted(grant) => Ok(grant),
            Acquired::Busy(rows) => {
                let row = only(rows);
                assert_eq!(row.grant, *held);
                // A row that ended between the two statements is seen as free.
                assert!(
                    states.contains(&row.state) || row.remaining.is_zero(),
                    "{row:?}"
                );
                Err(format!("{row:?}"))
            }
            other @ Acquired::Contested(..) => panic!("{other:?}"),
        }
    })
}

pub(super) fn at_least_outlives_a_crash(bench: &dyn Bench) {
    const LENGTH: Duration = Duration::from_millis(1600);
    let mut store = bench.open();
    let sent = clock::now();
    let held = acquire(
        store.as_mut(),
        &under(at_least(LENGTH), request("k", seconds(1))),
    );
    let next = await_grant(
        store.as_mut(),
        || request("k", long()),
        &held,
        &[State::Held, State::Closing],
    );
    let passed = clock::now() - sent + ROUNDING;
    assert!(passed >= LENGTH, "after {passed:?}");
    assert!(next.token > held.token);
}

pub(super) fn a_crashed_run_has_not_succeeded(bench: &dyn Bench) {
    let mut store = bench.open();
    let ask = |ttl| under(once_per(A_DAY), request("k", ttl));
    let held = acquire(store.as_mut(), &ask(seconds(1)));
    assert_eq!(await_expiry(store.as_mut(), "k").grant, held);
    acquire(store.as_mut(), &ask(long()));
}

pub(super) fn a_delay_keeps_an_expired_lease_shut(bench: &dyn Bench) {
    const DELAY: Duration = Duration::from_millis(700);
    let mut store = bench.open();
    let sent = clock::now();
    let held = acquire(
        store.as_mut(),
        &under(lock_delay(DELAY), request("k", seconds(1))),
    );
    let closing = wait::until("the lease to expire", || {
        let row = only(rows(store.as_mut(), "k"));
        match row.state {
            State::Held => Err(format!("{row:?}")),
            _ => Ok(row),
        }
    });
    assert_eq!(closing.state, State::Closing, "{closing:?}");
    assert!(closing.remaining <= DELAY, "{closing:?}");
    let next = await_grant(
        store.as_mut(),
        || request("k", long()),
        &held,
        &[State::Closing],
    );
    let passed = clock::now() - sent + ROUNDING;
    assert!(passed >= seconds(1).get() + DELAY, "after {passed:?}");
    assert!(next.token > held.token);
}

pub(super) fn a_delay_is_not_for_a_clean_release(bench: &dyn Bench) {
    let mut store = bench.open();
    for end in [DONE, FAILED] {
        let ask = under(lock_delay(A_DAY), request("k", long()));
        let held = acquire(store.as_mut(), &ask);
        finish(store.as_mut(), &held, end);
        assert_eq!(rows(store.as_mut(), "k"), []);
    }
    // Neither where something else keeps it shut.
    let terms = Terms {
        at_least: AN_HOUR,
        ..lock_delay(A_DAY)
    };
    let held = acquire(store.as_mut(), &under(terms, request("k", long())));
    finish(store.as_mut(), &held, DONE);
    assert_rest(&only(rows(store.as_mut(), "k")), AN_HOUR);
}

pub(super) fn a_takeover_forgets_the_terms_before(bench: &dyn Bench) {
    let short = Duration::from_millis(300);
    let mut store = bench.open();
    let terms = Terms {
        at_least: short,
        lock_delay: short,
        ..once_per(A_DAY)
    };
    let first = acquire(store.as_mut(), &under(terms, request("k", seconds(1))));
    let second = await_grant(
        store.as_mut(),
        || request("k", seconds(1)),
        &first,
        &[State::Held, State::Closing],
    );
    // Expired at once, and nothing is left of it after a release.
    await_expiry(store.as_mut(), "k");
    finish(store.as_mut(), &second, DONE);
    assert_eq!(rows(store.as_mut(), "k"), []);
}

// Waiters.

fn waiter(name: &str, pid: u32) -> Waiter {
    Waiter {
        id: Owner::generate(),
        key: key(name),
        host: "web-7".into(),
        pid,
        user: "deploy".into(),
        waiting: Duration::from_secs(5),
    }
}

/// Returns who waits, without the times.
fn shown(store: &mut dyn Store, name: Option<&str>) -> Vec<Owner> {
    let waiters = store.waiters(name.map(key).as_ref()).expect("an answer");
    waiters.into_iter().map(|waiter| waiter.id).collect()
}

pub(super) fn waiters_are_shown_in_the_order_of_their_arrival(bench: &dyn Bench) {
    const AT_ONCE: Duration = Duration::ZERO;
    let mut store = bench.open();
    acquire(store.as_mut(), &request("k", long()));
    let all = [
        waiter("k", 3),
        waiter("k", 1),
        waiter("j", 4),
        waiter("k", 2),
    ];
    let mut clients = Vec::new();
    let mut places = Vec::new();
    for waiter in &all {
        let mut client = bench.open();
        places.push(client.wait(waiter, AT_ONCE).expect("an answer").place);
        clients.push(client);
    }
    let place = |ahead, waiting| Some(Place { ahead, waiting });
    assert_eq!(places, [place(0, 1), place(1, 2), place(0, 1), place(2, 3)]);
    let ids = |of: &[usize]| -> Vec<Owner> { of.iter().map(|n| all[*n].id.clone()).collect() };
    assert_eq!(shown(store.as_mut(), None), ids(&[2, 0, 1, 3]));
    assert_eq!(shown(store.as_mut(), Some("j")), ids(&[2]));
    assert_eq!(shown(store.as_mut(), Some("nobody's")), []);
    let first = &store.waiters(Some(&key("k"))).expect("an answer")[0];
    let waited = first.waiting;
    assert!(
        waited >= all[0].waiting && waited < wait::LIMIT,
        "{first:?}"
    );
    let timeless = Waiter {
        waiting: all[0].waiting,
        ..first.clone()
    };
    assert_eq!(timeless, all[0]);

    // Who comes again keeps its place; who is forgotten is gone.
    clients[0].wait(&all[0], AT_ONCE).expect("an answer");
    assert_eq!(shown(store.as_mut(), Some("k")), ids(&[0, 1, 3]));
    let gone = std::slice::from_ref(&all[1].id);
    clients[1].forget(&key("k"), gone).expect("an answer");
    assert_eq!(shown(store.as_mut(), Some("k")), ids(&[0, 3]));
    assert_eq!(rows(store.as_mut(), "k").len(), 1, "the holder stays");
}

pub(super) fn a_wait_ends_within_its_limit(bench: &dyn Bench) {
    let mut store = bench.open();
    acquire(store.as_mut(), &request("k", long()));
    let mut other = bench.open();
    let waiter = waiter("k", 1);
    for limit in [0, 10, 1500, 2000] {
        let limit = Duration::from_millis(limit);
        let begin = clock::now();
        other.wait(&waiter, limit).expect("an answer");
        let passed = clock::now() - begin;
        // A busy machine may take its time; one that waits for ever does not.
        assert!(passed < limit + wait::LIMIT / 2, "{limit:?}: {passed:?}");
    }
    assert_eq!(shown(store.as_mut(), Some("k")), [waiter.id]);
}

/// The very moments, where the clock can be moved by hand.
mod exactly {
    use super::*;

    const TICK: Duration = Duration::from_nanos(1);
    const LENGTH: Duration = Duration::from_secs(10);

    /// Moves the clock to just before `left` is over, asserts that a row in
    /// this state stands in the way of a request, and that none does any more
    /// when the clock has moved on.
    #[track_caller]
    fn ends_at(world: &MemoryWorld, left: Duration, state: State, ask: impl Fn() -> Request) {
        let mut store = world.connect();
        world.advance(left - TICK);
        let row = only(busy(&mut store, &ask()));
        assert_eq!((row.state, row.remaining), (state, TICK));
        world.advance(TICK);
        acquire(&mut store, &ask());
    }

    fn plain() -> Request {
        request("k", long())
    }

    #[test]
    fn at_least_ends() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let grant = acquire(&mut store, &under(at_least(LENGTH), plain()));
        world.advance(LENGTH / 4);
        finish(&mut store, &grant, FAILED);
        ends_at(&world, LENGTH * 3 / 4, State::Closing, plain);
    }

    #[test]
    fn a_job_that_takes_as_long_leaves_nothing() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let grant = acquire(&mut store, &under(at_least(LENGTH), plain()));
        world.advance(LENGTH);
        finish(&mut store, &grant, DONE);
        assert_eq!(rows(&mut store, "k"), []);
    }

    #[test]
    fn a_success_ends_to_count() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let ask = || under(once_per(LENGTH), plain());
        let grant = acquire(&mut store, &ask());
        world.advance(LENGTH / 4);
        finish(&mut store, &grant, DONE);
        ends_at(&world, LENGTH * 3 / 4, State::Done, ask);
    }

    #[test]
    fn what_was_closed_is_done_after_it() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let terms = Terms {
            at_least: LENGTH,
            ..once_per(3 * LENGTH)
        };
        let grant = acquire(&mut store, &under(terms, plain()));
        finish(&mut store, &grant, DONE);
        world.advance(LENGTH - TICK);
        assert_eq!(only(rows(&mut store, "k")).state, State::Closing);
        world.advance(TICK);
        let row = only(rows(&mut store, "k"));
        assert_eq!((row.state, row.remaining), (State::Done, 2 * LENGTH));
        ends_at(&world, 2 * LENGTH, State::Done, || {
            under(once_per(LENGTH), plain())
        });
    }

    #[test]
    fn a_delay_ends() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let ask = under(lock_delay(LENGTH), request("k", seconds(5)));
        let grant = acquire(&mut store, &ask);
        world.advance(seconds(5).get() - TICK);
        assert_eq!(only(rows(&mut store, "k")).state, State::Held);
        world.advance(TICK);
        let row = only(lost(&mut store, &grant, Revive::Refused));
        assert_eq!((row.state, row.remaining), (State::Closing, LENGTH));
        ends_at(&world, LENGTH, State::Closing, plain);
    }

    #[test]
    fn who_is_late_by_less_than_the_delay_revives_its_lease() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let ask = under(lock_delay(LENGTH), request("k", seconds(5)));
        let grant = acquire(&mut store, &ask);
        world.advance(seconds(5).get() + LENGTH / 2);
        extend(&mut store, &grant, seconds(5), Revive::Allowed);
        assert_eq!(only(busy(&mut store, &plain())).state, State::Held);
    }

    #[test]
    fn a_block_ends() {
        let world = MemoryWorld::manual();
        let mut store = world.connect();
        let block = operator(None);
        store
            .block(&key("k"), Some(LENGTH), &block)
            .expect("a block");
        world.advance(LENGTH - TICK);
        let (_, beside) = contested(&mut store, &plain());
        assert_eq!(only(beside).remaining, TICK);
        world.advance(TICK);
        acquire(&mut store, &plain());
    }

    #[test]
    fn a_waiter_is_forgotten() {
        let world = MemoryWorld::manual();
        let (mut store, one) = (world.connect(), waiter("k", 1));
        store.wait(&one, LENGTH).expect("an answer");
        world.advance(WAITER_FORGOTTEN - TICK);
        let shown = store.waiters(None).expect("an answer").remove(0);
        assert_eq!(shown.waiting, one.waiting + WAITER_FORGOTTEN - TICK);
        // Who comes again in time stays.
        store.wait(&one, LENGTH).expect("an answer");
        world.advance(WAITER_FORGOTTEN - TICK);
        assert_eq!(store.waiters(None).expect("an answer").len(), 1);
        world.advance(TICK);
        assert_eq!(store.waiters(None).expect("an answer"), []);
        let place = store.wait(&waiter("k", 2), LENGTH).expect("an answer");
        let alone = Place {
            ahead: 0,
            waiting: 1,
        };
        assert_eq!(place.place, Some(alone));
    }
}
