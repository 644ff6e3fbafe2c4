//! One suite that holds every store to the contract of the trait `Store`.
//!
//! The tests know a store only through that trait and a [`Bench`]. What a
//! single store does beyond the contract is tested elsewhere, but for the
//! tables that MySQL's store must refuse, which stand at the end.

mod words;

use std::any::Any;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use dblock::clock::{self, Tick};
use dblock::lock::{Claimant, Grant, Holder, Key, Kind, Owner, Request, State, Terms, Token, Ttl};
use dblock::store::memory::MemoryWorld;
use dblock::store::{
    Acquired, End, Initialized, Limits, Released, Renewed, Revive, Secret, Store, StoreError,
};
use tempfile::TempDir;

use crate::support::database::Database;
use crate::support::server::{Server, query_on};
use crate::support::{PASSWORD, wait};
use words::*;

/// A server, or what stands for one, that belongs to one test alone.
trait Bench: Sync {
    /// Returns a new client that shares nothing with the others but the
    /// server.
    fn open(&self) -> Box<dyn Store>;

    /// Ends the server in the hardest way there is and starts it again. The
    /// test has dropped its clients, or expects them to lose their
    /// connections.
    fn restart(&self) {}

    /// Returns a client like [`open`](Self::open)'s with a limit of its own
    /// for each call.
    fn open_within(&self, _call: Duration) -> Box<dyn Store> {
        self.open()
    }

    /// Makes every writing call wait, as another program with a transaction
    /// would, until the answer is dropped. `None` where that cannot be.
    fn obstruct(&self) -> Option<Box<dyn Any>> {
        None
    }
}

/// How much earlier than its TTL a lease may seem to end: both the server's
/// clock and its leases are whole milliseconds, and two clocks of one host may
/// run apart by a hair.
const ROUNDING: Duration = Duration::from_millis(2);

/// How a job that has succeeded gives its lease back.
const DONE: End = End::Finished { succeeded: true };

fn key(text: &str) -> Key {
    Key::new(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn seconds(number: u64) -> Ttl {
    Ttl::new(Duration::from_secs(number)).expect("a TTL")
}

/// A TTL that no test outlives.
fn long() -> Ttl {
    seconds(600)
}

fn request(name: &str, ttl: Ttl) -> Request {
    Request {
        key: key(name),
        slot: 0,
        ttl,
        terms: Terms::default(),
        owner: Owner::generate(),
        former: Vec::new(),
        kind: Kind::Run,
        claimant: Claimant {
            host: "web-3".into(),
            pid: 4242,
            user: "deploy".into(),
            command: "/usr/bin/report --nightly".into(),
            note: None,
        },
    }
}

/// Acquires what must be free.
fn acquire(store: &mut dyn Store, request: &Request) -> Grant {
    match store.acquire(request) {
        Ok(Acquired::Granted(grant)) => {
            assert_eq!(grant.key, request.key);
            assert_eq!(grant.owner, request.owner);
            assert_eq!(grant.slot, request.slot);
            grant
        }
        other => panic!("{} was not granted: {other:?}", request.key),
    }
}

/// Fails to acquire what must be held, and returns by whom.
fn busy(store: &mut dyn Store, request: &Request) -> Vec<Holder> {
    match store.acquire(request) {
        Ok(Acquired::Busy(rows)) => rows,
        other => panic!("{} was not busy: {other:?}", request.key),
    }
}

/// Renews what must be lost, and returns the rows of the key.
fn lost(store: &mut dyn Store, grant: &Grant, revive: Revive) -> Vec<Holder> {
    match store.renew(grant, long(), revive) {
        Ok(Renewed::Lost(rows)) => rows,
        other => panic!("{} was not lost: {other:?}", grant.key),
    }
}

fn extend(store: &mut dyn Store, grant: &Grant, ttl: Ttl, revive: Revive) {
    let answer = store.renew(grant, ttl, revive).expect("an answer");
    assert_eq!(answer, Renewed::Extended);
}

fn release(store: &mut dyn Store, grant: &Grant) {
    let answer = store.release(grant, DONE).expect("an answer");
    assert_eq!(answer, Released::Released);
}

fn rows(store: &mut dyn Store, name: &str) -> Vec<Holder> {
    store.holders(Some(&key(name))).expect("an answer")
}

fn only(rows: Vec<Holder>) -> Holder {
    let mut rows = rows;
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.remove(0)
}

/// A call of whose answer only the error matters.
type Call<'a> = dyn Fn(&mut dyn Store) -> Result<(), StoreError> + Sync + 'a;

/// Waits until the lease of a key has expired, and returns its row.
fn await_expiry(store: &mut dyn Store, name: &str) -> Holder {
    wait::until("the lease to expire", || {
        let row = only(rows(store, name));
        match row.state {
            State::Expired => Ok(row),
            _ => Err(format!("{row:?}")),
        }
    })
}

/// Asserts that nobody wrote to the rows between two looks at them.
fn assert_untouched(before: &[Holder], after: &[Holder]) {
    let still = |rows: &[Holder]| -> Vec<Holder> {
        let timeless = |row: &Holder| Holder {
            held: Duration::ZERO,
            remaining: Duration::ZERO,
            ..row.clone()
        };
        rows.iter().map(timeless).collect()
    };
    assert_eq!(still(before), still(after));
    for (before, after) in before.iter().zip(after) {
        if before.state == State::Held {
            // What has passed and what is left is the whole lease, as long as
            // nobody moves its end.
            let ends = [before, after].map(|row| row.held + row.remaining);
            assert!(
                ends[0].abs_diff(ends[1]) <= ROUNDING,
                "{before:?} {after:?}"
            );
        }
    }
}

/// Asserts that a lease of `ttl`, asked for at `sent`, has the right rest.
fn assert_remaining(row: &Holder, ttl: Ttl, sent: Tick) {
    assert_eq!(row.state, State::Held);
    assert_eq!(row.ttl, ttl.get());
    assert!(row.remaining <= ttl.get(), "{row:?}");
    let passed = clock::now() - sent;
    assert!(row.remaining + passed + ROUNDING >= ttl.get(), "{row:?}");
}

// Exclusion.

fn one_of_many_threads_holds_at_a_time(bench: &dyn Bench) {
    const THREADS: usize = 16;
    const GRANTS: usize = 100;
    let held = AtomicBool::new(false);
    let tokens = Mutex::new(Vec::new());
    let limit = clock::now() + wait::LIMIT;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut store = bench.open();
                while tokens.lock().expect("no panic").len() < GRANTS {
                    assert!(clock::now() < limit, "too few grants");
                    let grant = match store.acquire(&request("k", long())) {
                        Ok(Acquired::Granted(grant)) => grant,
                        Ok(Acquired::Busy(_)) | Err(StoreError::Transient(_)) => continue,
                        other => panic!("{other:?}"),
                    };
                    assert!(!held.swap(true, Ordering::SeqCst), "two hold the key");
                    tokens.lock().expect("no panic").push(grant.token);
                    thread::yield_now();
                    assert!(held.swap(false, Ordering::SeqCst), "two held the key");
                    release_at_last(store.as_mut(), &grant);
                }
            });
        }
    });
    let tokens = tokens.into_inner().expect("no panic");
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(rows(bench.open().as_mut(), "k"), []);
}

/// Releases, also if the store is too busy to do it at once.
fn release_at_last(store: &mut dyn Store, grant: &Grant) {
    let answer = wait::until("a release", || match store.release(grant, DONE) {
        Err(StoreError::Transient(text)) => Err(text),
        answer => Ok(answer.expect("an answer")),
    });
    assert_eq!(answer, Released::Released);
}

fn one_of_many_threads_takes_over(bench: &dyn Bench) {
    let mut store = bench.open();
    let sent = clock::now();
    let first = acquire(store.as_mut(), &request("k", seconds(1)));
    let winners = Mutex::new(Vec::new());
    let limit = clock::now() + wait::LIMIT;
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut store = bench.open();
                loop {
                    assert!(clock::now() < limit, "nobody takes the lease over");
                    match store.acquire(&request("k", long())) {
                        Ok(Acquired::Granted(grant)) => {
                            let after = clock::now() - sent;
                            assert!(after + ROUNDING >= Ttl::MIN, "taken after {after:?}");
                            winners.lock().expect("no panic").push(grant);
                            return;
                        }
                        Ok(Acquired::Busy(rows)) if rows.iter().any(|row| row.grant != first) => {
                            return;
                        }
                        Ok(Acquired::Busy(_)) | Err(StoreError::Transient(_)) => {
                            thread::park_timeout(Duration::from_millis(2));
                        }
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    let winners = winners.into_inner().expect("no panic");
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert!(winners[0].token > first.token);
    assert_eq!(only(rows(store.as_mut(), "k")).grant, winners[0]);
}

fn busy_shows_the_holder(bench: &dyn Bench) {
    let mut store = bench.open();
    let mut held = request("k", seconds(60));
    held.kind = Kind::Acquire;
    held.claimant.note = Some("https://ci/job/7".into());
    let sent = clock::now();
    let grant = acquire(store.as_mut(), &held);
    for mut other in [store, bench.open()] {
        let row = only(busy(other.as_mut(), &request("k", seconds(5))));
        assert_eq!(row.grant, grant);
        assert_eq!(row.kind, Kind::Acquire);
        assert_eq!(row.claimant, held.claimant);
        assert_eq!(row.slots, 1);
        assert_eq!(row.renewals, 0);
        assert!(row.acquired_at.is_some());
        assert_remaining(&row, held.ttl, sent);
        assert!(row.held <= clock::now() - sent + ROUNDING, "{row:?}");
        assert_untouched(&[row], &rows(other.as_mut(), "k"));
    }
}

fn the_same_owner_is_not_granted_twice(bench: &dyn Bench) {
    let mut store = bench.open();
    let first = request("k", long());
    let grant = acquire(store.as_mut(), &first);
    let row = only(busy(store.as_mut(), &first));
    assert_eq!(row.grant, grant);
}

// Expiry.

fn a_lease_is_taken_over_only_when_it_has_expired(bench: &dyn Bench) {
    let mut store = bench.open();
    let mut other = bench.open();
    let sent = clock::now();
    let first = acquire(store.as_mut(), &request("k", seconds(1)));
    let mut promised = Vec::new();
    let second = wait::until("the lease to expire", || {
        let looked = clock::now();
        let row = only(rows(other.as_mut(), "k"));
        assert_eq!(row.grant, first);
        assert_eq!(row.state == State::Expired, row.remaining.is_zero());
        promised.push(looked + row.remaining);
        match other.acquire(&request("k", long())).expect("an answer") {
            Acquired::Granted(grant) => Ok(grant),
            Acquired::Busy(rows) => {
                let row = only(rows);
                assert_eq!(row.grant, first);
                Err(format!("{row:?}"))
            }
            other => panic!("{other:?}"),
        }
    });
    let now = clock::now();
    assert!(
        now + ROUNDING >= sent + Ttl::MIN,
        "{:?} early",
        sent + Ttl::MIN - now
    );
    for end in promised {
        assert!(now + ROUNDING >= end, "{:?} before it was said", end - now);
    }
    assert!(second.token > first.token);
    assert_eq!(only(rows(store.as_mut(), "k")).grant, second);
}

fn an_expired_row_stays_until_it_is_taken(bench: &dyn Bench) {
    let mut store = bench.open();
    let grant = acquire(store.as_mut(), &request("k", seconds(1)));
    let row = await_expiry(store.as_mut(), "k");
    assert_eq!(row.grant, grant);
    assert_eq!(row.remaining, Duration::ZERO);
    assert!(row.held + ROUNDING >= Ttl::MIN, "{row:?}");
    let all = store.holders(None).expect("an answer");
    assert_eq!(only(all).state, State::Expired);
    assert_eq!(
        store.release(&grant, DONE).expect("an answer"),
        Released::Released
    );
    assert_eq!(rows(store.as_mut(), "k"), []);
}

fn a_takeover_replaces_the_whole_row(bench: &dyn Bench) {
    let mut store = bench.open();
    let mut before = request("k", seconds(1));
    before.claimant.note = Some("before".into());
    let first = acquire(store.as_mut(), &before);
    extend(store.as_mut(), &first, seconds(1), Revive::Allowed);
    await_expiry(store.as_mut(), "k");
    let after = Request {
        kind: Kind::Acquire,
        claimant: Claimant {
            host: "web-4".into(),
            pid: 1,
            user: "root".into(),
            command: String::new(),
            note: None,
        },
        ..request("k", seconds(60))
    };
    let sent = clock::now();
    let second = acquire(store.as_mut(), &after);
    let row = only(rows(store.as_mut(), "k"));
    assert_eq!(row.grant, second);
    assert_eq!(row.kind, Kind::Acquire);
    assert_eq!(row.claimant, after.claimant);
    assert_eq!(row.renewals, 0);
    assert!(row.held <= clock::now() - sent + ROUNDING, "{row:?}");
    assert_remaining(&row, after.ttl, sent);
}

// Tokens.

fn tokens_rise(bench: &dyn Bench) {
    let mut store = bench.open();
    let mut last = Token(0);
    for round in 0..5 {
        let grant = acquire(store.as_mut(), &request("k", long()));
        assert!(grant.token > last, "round {round}: {grant:?}, {last}");
        last = grant.token;
        busy(bench.open().as_mut(), &request("k", long()));
        let other = acquire(store.as_mut(), &request("other", long()));
        release(store.as_mut(), &other);
        release(store.as_mut(), &grant);
    }
    let expiring = acquire(store.as_mut(), &request("k", seconds(1)));
    assert!(expiring.token > last);
    await_expiry(store.as_mut(), "k");
    let taken = acquire(bench.open().as_mut(), &request("k", long()));
    assert!(taken.token > expiring.token);
    release(store.as_mut(), &taken);
    let after = acquire(store.as_mut(), &request("k", long()));
    assert!(after.token > taken.token);
    let init = store.init().expect("an answer");
    assert_eq!(init, Initialized::Unchanged);
    release(store.as_mut(), &after);
    assert!(acquire(store.as_mut(), &request("k", long())).token > after.token);
}

fn rows_and_tokens_outlive_a_restart(bench: &dyn Bench) {
    let mut store = bench.open();
    let kept = acquire(store.as_mut(), &request("kept", long()));
    let gone = acquire(store.as_mut(), &request("gone", long()));
    release(store.as_mut(), &gone);
    let before = rows(store.as_mut(), "kept");
    drop(store);

    bench.restart();
    let mut store = bench.open();
    assert_untouched(&before, &rows(store.as_mut(), "kept"));
    assert_untouched(&before, &busy(store.as_mut(), &request("kept", long())));
    extend(store.as_mut(), &kept, long(), Revive::Refused);
    let again = acquire(store.as_mut(), &request("gone", long()));
    assert!(again.token > gone.token);
    release(store.as_mut(), &again);
    release(store.as_mut(), &kept);
    assert_eq!(store.holders(None).expect("an answer"), []);

    // The counter must not be read off the rows: now there are none. And the
    // client of before the restart must find its way back by itself.
    bench.restart();
    let fresh = wait::until("a new connection", || {
        store.holders(None).map_err(|error| {
            assert!(error.may_pass(), "{error:?}");
            error.to_string()
        })
    });
    assert_eq!(fresh, []);
    for (name, last) in [("kept", kept.token), ("gone", again.token)] {
        let grant = acquire(store.as_mut(), &request(name, long()));
        assert!(grant.token > last, "{grant:?} after {last}");
    }
}

// The owner check.

/// Calls that must not change anything, and asserts that they do not.
fn assert_powerless(store: &mut dyn Store, grant: &Grant) {
    let before = store.holders(None).expect("an answer");
    let of_key: Vec<_> = before
        .iter()
        .filter(|row| row.grant.key == grant.key)
        .cloned()
        .collect();
    for revive in [Revive::Allowed, Revive::Refused] {
        assert_untouched(&of_key, &lost(store, grant, revive));
    }
    assert_eq!(
        store.release(grant, DONE).expect("an answer"),
        Released::NotHeld
    );
    assert_untouched(&before, &store.holders(None).expect("an answer"));
}

fn a_grant_that_is_wrong_in_one_part_changes_nothing(bench: &dyn Bench) {
    let mut store = bench.open();
    let held = acquire(store.as_mut(), &request("k", long()));
    acquire(store.as_mut(), &request("other", long()));
    for wrong in [
        Grant {
            owner: Owner::generate(),
            ..held.clone()
        },
        Grant {
            owner: Owner::from_store(held.owner.as_str().to_uppercase()),
            ..held.clone()
        },
        Grant {
            token: Token(held.token.0 + 1),
            ..held.clone()
        },
        Grant {
            token: Token(held.token.0 - 1),
            ..held.clone()
        },
        Grant {
            slot: 1,
            ..held.clone()
        },
        Grant {
            key: key("other"),
            ..held.clone()
        },
        Grant {
            key: key("K"),
            ..held.clone()
        },
    ] {
        assert_powerless(store.as_mut(), &wrong);
    }
    extend(store.as_mut(), &held, long(), Revive::Refused);
}

fn who_lost_a_lease_cannot_touch_the_successor(bench: &dyn Bench) {
    let mut store = bench.open();
    let loser = acquire(store.as_mut(), &request("k", seconds(1)));
    await_expiry(store.as_mut(), "k");
    let mut other = bench.open();
    let winner = acquire(other.as_mut(), &request("k", long()));
    assert_powerless(store.as_mut(), &loser);
    assert_eq!(
        only(lost(store.as_mut(), &loser, Revive::Allowed)).grant,
        winner
    );
    release(other.as_mut(), &winner);
    assert_powerless(store.as_mut(), &loser);
}

// Renewal.

fn a_renewal_counts_from_its_own_moment(bench: &dyn Bench) {
    let mut store = bench.open();
    let asked = request("k", seconds(60));
    let grant = acquire(store.as_mut(), &asked);
    let granted = only(rows(store.as_mut(), "k"));
    for (number, ttl) in [
        seconds(60),
        seconds(600),
        seconds(5),
        seconds(30 * 24 * 3600),
    ]
    .into_iter()
    .enumerate()
    {
        let sent = clock::now();
        extend(store.as_mut(), &grant, ttl, Revive::Refused);
        let row = only(rows(bench.open().as_mut(), "k"));
        assert_remaining(&row, ttl, sent);
        assert_eq!(row.renewals, number as u64 + 1);
        let unchanged = Holder {
            ttl: row.ttl,
            held: row.held,
            remaining: row.remaining,
            renewals: row.renewals,
            ..granted.clone()
        };
        assert_eq!(row, unchanged, "a renewal changes nothing else");
    }
}

fn a_renewed_lease_outlives_its_first_end(bench: &dyn Bench) {
    let mut store = bench.open();
    let sent = clock::now();
    let grant = acquire(store.as_mut(), &request("k", seconds(1)));
    extend(store.as_mut(), &grant, long(), Revive::Refused);
    wait::until("the first end to pass", || {
        let row = only(busy(store.as_mut(), &request("k", long())));
        assert_eq!(row.grant, grant);
        let left = sent + Ttl::MIN + 10 * ROUNDING - clock::now();
        left.is_zero()
            .then_some(())
            .ok_or(format!("{left:?} to go"))
    });
}

fn a_removed_lease_is_lost(bench: &dyn Bench) {
    let mut store = bench.open();
    let grant = acquire(store.as_mut(), &request("k", long()));
    release(bench.open().as_mut(), &grant);
    for revive in [Revive::Allowed, Revive::Refused] {
        assert_eq!(lost(store.as_mut(), &grant, revive), []);
    }
    assert_eq!(rows(store.as_mut(), "k"), []);
}

fn an_expired_lease_is_revived_only_where_that_is_allowed(bench: &dyn Bench) {
    let mut store = bench.open();
    let grant = acquire(store.as_mut(), &request("k", seconds(1)));
    let expired = await_expiry(store.as_mut(), "k");
    let told = lost(store.as_mut(), &grant, Revive::Refused);
    assert_untouched(&[expired], &told);
    assert_untouched(&told, &rows(store.as_mut(), "k"));

    let sent = clock::now();
    extend(store.as_mut(), &grant, seconds(60), Revive::Allowed);
    let row = only(busy(bench.open().as_mut(), &request("k", long())));
    assert_eq!(row.grant, grant);
    assert_eq!(row.renewals, 1);
    assert_remaining(&row, seconds(60), sent);
}

// Release, and outcomes that nobody knows.

fn a_second_release_finds_nothing(bench: &dyn Bench) {
    let mut store = bench.open();
    let grant = acquire(store.as_mut(), &request("k", long()));
    release(store.as_mut(), &grant);
    assert_eq!(
        store.release(&grant, DONE).expect("an answer"),
        Released::NotHeld
    );
    let mut other = bench.open();
    let next = acquire(other.as_mut(), &request("k", long()));
    let before = rows(other.as_mut(), "k");
    assert_eq!(
        store.release(&grant, DONE).expect("an answer"),
        Released::NotHeld
    );
    assert_untouched(&before, &rows(other.as_mut(), "k"));
    release(other.as_mut(), &next);
}

fn a_renewal_may_be_repeated(bench: &dyn Bench) {
    let mut store = bench.open();
    let grant = acquire(store.as_mut(), &request("k", seconds(5)));
    let sent = clock::now();
    // The answer to the first is thought lost; the second goes another way.
    extend(store.as_mut(), &grant, seconds(60), Revive::Allowed);
    extend(bench.open().as_mut(), &grant, seconds(60), Revive::Allowed);
    let row = only(rows(store.as_mut(), "k"));
    assert_eq!(row.grant, grant);
    assert_remaining(&row, seconds(60), sent);
}

fn the_next_attempt_removes_what_a_lost_one_left(bench: &dyn Bench) {
    let mut store = bench.open();
    let mut attempt = request("k", long());
    let mut last = Token(0);
    for _ in 0..3 {
        let grant = acquire(store.as_mut(), &attempt);
        assert!(grant.token > last);
        last = grant.token;
        // From here on nobody knows that it was granted.
        let unknown = [attempt.former, vec![attempt.owner]].concat();
        attempt = Request {
            former: unknown,
            ..request("k", long())
        };
        store = bench.open();
    }
    let grant = acquire(store.as_mut(), &attempt);
    assert!(grant.token > last);
    assert_eq!(only(store.holders(None).expect("an answer")).grant, grant);
}

fn former_attempts_have_no_say_over_others(bench: &dyn Bench) {
    let mut store = bench.open();
    let holder = acquire(store.as_mut(), &request("k", long()));
    // The same owner under another key: not this key's affair.
    let elsewhere = request("other", long());
    let other = acquire(store.as_mut(), &elsewhere);
    let attempt = Request {
        former: vec![Owner::generate(), elsewhere.owner.clone()],
        ..request("k", long())
    };
    let before = store.holders(None).expect("an answer");
    assert_eq!(only(busy(store.as_mut(), &attempt)).grant, holder);
    store
        .forget(&attempt.key, &attempt.former)
        .expect("an answer");
    assert_untouched(&before, &store.holders(None).expect("an answer"));
    release(store.as_mut(), &other);
    release(store.as_mut(), &holder);
}

fn forgetting_removes_what_lost_attempts_left(bench: &dyn Bench) {
    let mut store = bench.open();
    let attempt = request("k", long());
    acquire(store.as_mut(), &attempt);
    let elsewhere = acquire(store.as_mut(), &request("other", long()));
    let owners = [Owner::generate(), attempt.owner];
    // Twice, because the answer to the first may be lost as well.
    for _ in 0..2 {
        let mut other = bench.open();
        other.forget(&attempt.key, &owners).expect("an answer");
        let left = store.holders(None).expect("an answer");
        assert_eq!(only(left).grant, elsewhere);
    }
    store.forget(&attempt.key, &[]).expect("an answer");
    store.forget(&key("nobody's"), &owners).expect("an answer");
    store.forget(&elsewhere.key, &owners).expect("an answer");
    assert_eq!(only(rows(store.as_mut(), "other")).grant, elsewhere);
    acquire(store.as_mut(), &request("k", long()));

    // What has expired is removed as well.
    let short = request("short", seconds(1));
    acquire(store.as_mut(), &short);
    await_expiry(store.as_mut(), "short");
    store.forget(&short.key, &[short.owner]).expect("an answer");
    assert_eq!(rows(store.as_mut(), "short"), []);
}

fn an_obstructed_call_ends_in_time_and_has_done_nothing(bench: &dyn Bench) {
    const LIMIT: Duration = Duration::from_millis(2500);
    let mut store = bench.open();
    let grant = acquire(store.as_mut(), &request("held", long()));
    let before = store.holders(None).expect("an answer");
    let Some(obstacle) = bench.obstruct() else {
        return;
    };
    let calls: [(&str, &Call); 5] = [
        ("acquire, free", &|store| {
            store.acquire(&request("free", long())).map(drop)
        }),
        ("acquire, held", &|store| {
            store.acquire(&request("held", long())).map(drop)
        }),
        ("renew", &|store| {
            store.renew(&grant, long(), Revive::Allowed).map(drop)
        }),
        ("release", &|store| store.release(&grant, DONE).map(drop)),
        ("forget", &|store| {
            store.forget(&grant.key, std::slice::from_ref(&grant.owner))
        }),
    ];
    thread::scope(|scope| {
        for (name, call) in calls {
            scope.spawn(move || {
                let mut store = bench.open_within(LIMIT);
                let begin = clock::now();
                let answer = call(store.as_mut());
                let passed = clock::now() - begin;
                assert!(
                    matches!(answer, Err(StoreError::Transient(_))),
                    "{name}: {answer:?}"
                );
                assert!(
                    passed < LIMIT + Duration::from_secs(2),
                    "{name}: {passed:?}"
                );
            });
        }
    });
    drop(obstacle);
    assert_untouched(&before, &store.holders(None).expect("an answer"));
    extend(store.as_mut(), &grant, long(), Revive::Refused);
    acquire(store.as_mut(), &request("free", long()));
}

// Keys and texts.

/// Pairs of keys that some collation, some number parser or some pattern
/// takes for the same.
const ALIKE: &[(&str, &str)] = &[
    ("key", "KEY"),
    ("\u{e9}t\u{e9}", "e\u{301}te\u{301}"),
    ("\u{e9}", "e"),
    ("\u{1f363}", "\u{1f37a}"),
    ("\u{1f600}", "\u{1f601}"),
    ("a", "a\u{200b}"),
    ("a", "\u{200b}a"),
    ("ab", "a\u{200b}b"),
    ("ab", "a\u{ad}b"),
    ("a", "\u{ff41}"),
    ("stra\u{df}e", "strasse"),
    ("STRASSE", "STRA\u{1e9e}E"),
    ("\u{fb01}le", "file"),
    ("\u{131}", "i"),
    ("\u{3c2}", "\u{3c3}"),
    ("a", "\u{430}"),
    ("\u{212b}", "\u{c5}"),
    ("\u{2764}", "\u{2764}\u{fe0f}"),
    ("1", "01"),
    ("1", "1.0"),
    ("0", "x"),
    ("a b", "a  b"),
    ("a b", "a\u{a0}b"),
    ("a%", "ab"),
    ("a_", "ab"),
    ("a", "a\\"),
    ("a\\", "a\\\\"),
    ("a'", "a''"),
    ("a\"", "a\\\""),
    ("a", "a/*b*/"),
    ("a", "a?"),
    ("\u{fffd}", "?"),
    ("\u{10ffff}", "\u{ffff}"),
];

fn keys_of_different_bytes_are_different_locks(bench: &dyn Bench) {
    let mut store = bench.open();
    for (one, two) in ALIKE {
        let pair = [one, two].map(|name| acquire(store.as_mut(), &request(name, long())));
        for grant in &pair {
            let name = grant.key.as_str();
            assert_eq!(only(rows(store.as_mut(), name)).grant, *grant);
            assert_eq!(
                only(busy(store.as_mut(), &request(name, long()))).grant,
                *grant
            );
        }
        // Each is renewed and released without the other.
        extend(store.as_mut(), &pair[0], seconds(60), Revive::Refused);
        let untouched = only(rows(store.as_mut(), two));
        assert_eq!((untouched.renewals, untouched.ttl), (0, long().get()));
        release(store.as_mut(), &pair[0]);
        assert_eq!(rows(store.as_mut(), one), []);
        assert_eq!(only(store.holders(None).expect("an answer")).grant, pair[1]);
        release(store.as_mut(), &pair[1]);
    }
}

fn keys_of_full_length_keep_their_last_byte(bench: &dyn Bench) {
    let mut store = bench.open();
    let mut grants = Vec::new();
    for (stem, times, ends) in [
        ("x", 254, ["a", "b"]),
        ("\u{e9}", 127, ["a", "b"]),
        ("\u{20ac}", 84, ["abc", "abd"]),
        ("\u{1f600}", 63, ["abc", "abd"]),
        ("\u{1f601}", 62, ["\u{1f600}abc", "\u{1f601}abc"]),
    ] {
        for end in ends {
            let name = format!("{}{end}", stem.repeat(times));
            assert_eq!(name.len(), dblock::lock::KEY_MAX_BYTES);
            grants.push(acquire(store.as_mut(), &request(&name, long())));
        }
    }
    for grant in &grants {
        assert_eq!(only(rows(store.as_mut(), grant.key.as_str())).grant, *grant);
        release(store.as_mut(), grant);
    }
    assert_eq!(store.holders(None).expect("an answer"), []);
}

fn texts_survive_unchanged(bench: &dyn Bench) {
    let mut store = bench.open();
    let full = |stem: &str| -> String { stem.chars().cycle().take(255).collect() };
    let texts = [
        full("x"),
        full("\u{1f600}"),
        full("\u{10ffff}e\u{301}"),
        full("'; DROP TABLE dblock_lock; -- "),
        full("\\'\"`\\\\%_?#/* \u{200b}"),
        full("' OR 1=1; DELETE FROM dblock_lock WHERE '1'='1"),
        "  blanks at both ends  ".into(),
        "\u{feff}mark\u{fffd}".into(),
        String::new(),
    ];
    for (number, text) in texts.iter().enumerate() {
        let claimant = Claimant {
            host: text.clone(),
            pid: [0, 1, u32::MAX][number % 3],
            user: text.clone(),
            command: text.clone(),
            note: Some(text.clone()),
        };
        assert_eq!(claimant.clone().fitted(), claimant, "is what dblock sends");
        let asked = Request {
            claimant,
            ..request("k", long())
        };
        let grant = acquire(store.as_mut(), &asked);
        let row = only(busy(bench.open().as_mut(), &request("k", long())));
        assert_eq!(row.claimant, asked.claimant);
        release(store.as_mut(), &grant);
    }
}

fn holders_come_in_the_order_of_their_bytes(bench: &dyn Bench) {
    let mut store = bench.open();
    let mut names = [
        "b",
        "a",
        "B",
        "\u{e4}",
        "Z",
        "aa",
        "a b",
        "a!",
        "\u{1f600}",
        "\u{ffff}",
        "0",
        "10",
        "9",
        "a\u{200b}",
        "\u{ff41}",
        "_",
        "~",
    ];
    for name in names {
        acquire(store.as_mut(), &request(name, long()));
    }
    let all = store.holders(None).expect("an answer");
    let found: Vec<_> = all.iter().map(|row| row.grant.key.as_str()).collect();
    names.sort_unstable();
    assert_eq!(found, names);
    for name in names {
        assert_eq!(only(rows(store.as_mut(), name)).grant.key, key(name));
    }
    assert_eq!(rows(store.as_mut(), "nobody's"), []);
    assert_eq!(rows(store.as_mut(), "%"), []);
}

// Tables.

fn init_may_be_called_by_many_at_once(bench: &dyn Bench) {
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                if let Err(error) = bench.open().init() {
                    failures.lock().expect("no panic").push(error);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(bench.open().holders(None).expect("an answer"), []);
    acquire(bench.open().as_mut(), &request("k", long()));
}

fn init_may_be_repeated_under_holders(bench: &dyn Bench) {
    let mut store = bench.open();
    store.init().expect("tables");
    let grant = acquire(store.as_mut(), &request("k", long()));
    let before = rows(store.as_mut(), "k");
    for mut other in [bench.open(), bench.open()] {
        assert_eq!(other.init().expect("tables"), Initialized::Unchanged);
    }
    assert_untouched(&before, &store.holders(None).expect("an answer"));
    release(store.as_mut(), &grant);
}

/// A first grant comes from tables that are there or made by the way, or the
/// answer says how to make them; it is never a half-made table.
fn first_calls_without_init_work_or_say_what_to_do(bench: &dyn Bench) {
    let grant = Grant {
        key: key("k"),
        slot: 0,
        owner: Owner::generate(),
        token: Token(1),
    };
    let calls: [(&str, &Call); 5] = [
        ("holders", &|store| store.holders(None).map(drop)),
        ("renew", &|store| {
            store.renew(&grant, long(), Revive::Allowed).map(drop)
        }),
        ("release", &|store| store.release(&grant, DONE).map(drop)),
        ("forget", &|store| {
            store.forget(&grant.key, std::slice::from_ref(&grant.owner))
        }),
        ("acquire", &|store| {
            store.acquire(&request("k", long())).map(drop)
        }),
    ];
    for (name, call) in calls {
        match call(bench.open().as_mut()) {
            Ok(()) => {}
            Err(StoreError::Schema(text)) => {
                assert!(text.contains("dblock init"), "{name}: {text}");
            }
            Err(other) => panic!("{name}: {other:?}"),
        }
    }
}

// The benches.

fn open(url: &str, call: Duration) -> Box<dyn Store> {
    let password = Some(Secret::new(PASSWORD.into()));
    let endpoint = dblock::store::endpoint(url, password).expect("the URL is right");
    endpoint.open(Limits {
        connect: wait::LIMIT,
        call,
        idle: wait::LIMIT,
        queue: true,
    })
}

/// How a store's bench is set up and taken down around a test.
trait Setup {
    /// Runs a test on a bench that `init` was not called on.
    fn bare(test: fn(&dyn Bench));

    /// Runs a test on a bench that is ready for use.
    fn ready(test: fn(&dyn Bench));

    /// Runs a test that restarts the server, on a bench that is ready for use
    /// and whose server no other test uses.
    fn alone(test: fn(&dyn Bench));
}

struct InMemory;

impl Bench for MemoryWorld {
    fn open(&self) -> Box<dyn Store> {
        Box::new(self.connect())
    }
}

impl Setup for InMemory {
    fn bare(test: fn(&dyn Bench)) {
        test(&MemoryWorld::new());
    }

    fn ready(test: fn(&dyn Bench)) {
        Self::bare(test);
    }

    fn alone(test: fn(&dyn Bench)) {
        Self::bare(test);
    }
}

/// The embedded store has no server: all that a restart could end is gone when
/// a test has dropped its clients.
struct InFile {
    path: PathBuf,
    _directory: TempDir,
}

impl InFile {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self {
            path: directory.path().join("locks.db"),
            _directory: directory,
        }
    }
}

impl Bench for InFile {
    fn open(&self) -> Box<dyn Store> {
        self.open_within(wait::LIMIT)
    }

    fn open_within(&self, call: Duration) -> Box<dyn Store> {
        open(&format!("sqlite:{}", self.path.display()), call)
    }

    fn obstruct(&self) -> Option<Box<dyn Any>> {
        let other = rusqlite::Connection::open(&self.path).expect("the file is there");
        other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
        Some(Box::new(other))
    }
}

impl Setup for InFile {
    fn bare(test: fn(&dyn Bench)) {
        test(&Self::new());
    }

    fn ready(test: fn(&dyn Bench)) {
        let bench = Self::new();
        bench.open().init().expect("tables");
        test(&bench);
    }

    fn alone(test: fn(&dyn Bench)) {
        Self::ready(test);
    }
}

/// The clients are the user with the least rights, but where a test calls
/// `init` on a server without tables.
struct OnServer<'server> {
    database: Database<'server>,
    url: String,
}

impl<'server> OnServer<'server> {
    fn bare(server: &'server Server) -> Self {
        let database = Database::without_tables(server);
        Self {
            url: admin_url(&database),
            database,
        }
    }

    fn ready(server: &'server Server) -> Self {
        let database = Database::without_tables(server);
        let made = open_admin(&database).init().expect("tables");
        assert_eq!(made, Initialized::Created);
        Self {
            url: database.url(),
            database,
        }
    }
}

fn admin_url(database: &Database<'_>) -> String {
    let port = database.server().port();
    format!("mysql://admin@127.0.0.1:{port}/{}", database.name())
}

fn open_admin(database: &Database<'_>) -> Box<dyn Store> {
    open(&admin_url(database), wait::LIMIT)
}

impl Bench for OnServer<'_> {
    fn open(&self) -> Box<dyn Store> {
        self.open_within(wait::LIMIT)
    }

    fn open_within(&self, call: Duration) -> Box<dyn Store> {
        open(&self.url, call)
    }

    fn obstruct(&self) -> Option<Box<dyn Any>> {
        let mut other = self.database.server().connect().expect("a connection");
        assert!(other.select_db(self.database.name()).is_ok());
        for sql in ["BEGIN", "SELECT * FROM dblock_lock FOR UPDATE"] {
            query_on(&mut other, sql).expect("a lock");
        }
        Some(Box::new(other))
    }

    fn restart(&self) {
        let server = self.database.server();
        server.kill();
        server.start_again();
    }
}

struct OnMariadb;

impl Setup for OnMariadb {
    fn bare(test: fn(&dyn Bench)) {
        test(&OnServer::bare(Server::shared()));
    }

    fn ready(test: fn(&dyn Bench)) {
        test(&OnServer::ready(Server::shared()));
    }

    fn alone(test: fn(&dyn Bench)) {
        test(&OnServer::ready(&Server::start()));
    }
}

/// A server whose administrator has changed every default that could give a
/// statement, a text or a clock another meaning.
struct OnOddMariadb;

static ODD: LazyLock<Server> = LazyLock::new(start_odd);

fn start_odd() -> Server {
    let server = Server::start();
    for setting in [
        // Not strict, so that texts would be cut, not refused.
        "sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,\
         HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH,NO_AUTO_VALUE_ON_ZERO'",
        "time_zone='+05:45'",
        "character_set_server=latin1",
        "collation_server=latin1_german2_ci",
        "default_storage_engine=MyISAM",
        "TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "auto_increment_increment=7",
        "auto_increment_offset=3",
        "sql_safe_updates=1",
        // What is meant for every session of those who are not administrators.
        "init_connect='SET autocommit=0, timestamp=1000000000, sql_auto_is_null=1'",
    ] {
        server.execute(&format!("SET GLOBAL {setting}"));
    }
    server
}

impl Setup for OnOddMariadb {
    fn bare(test: fn(&dyn Bench)) {
        test(&OnServer::bare(&ODD));
    }

    fn ready(test: fn(&dyn Bench)) {
        test(&OnServer::ready(&ODD));
    }

    /// The settings end with the server, and what was written under them is
    /// read under others.
    fn alone(test: fn(&dyn Bench)) {
        test(&OnServer::ready(&start_odd()));
    }
}

// The suite.

macro_rules! tests {
    ($setup:ident::$kind:ident: $($test:ident),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                <super::$setup as super::Setup>::$kind(super::$test);
            }
        )+
    };
}

macro_rules! contract {
    ($store:ident, $setup:ident) => {
        mod $store {
            tests! { $setup::ready:
                one_of_many_threads_holds_at_a_time,
                one_of_many_threads_takes_over,
                busy_shows_the_holder,
                the_same_owner_is_not_granted_twice,
                a_lease_is_taken_over_only_when_it_has_expired,
                an_expired_row_stays_until_it_is_taken,
                a_takeover_replaces_the_whole_row,
                tokens_rise,
                a_grant_that_is_wrong_in_one_part_changes_nothing,
                who_lost_a_lease_cannot_touch_the_successor,
                a_renewal_counts_from_its_own_moment,
                a_renewed_lease_outlives_its_first_end,
                a_removed_lease_is_lost,
                an_expired_lease_is_revived_only_where_that_is_allowed,
                a_second_release_finds_nothing,
                a_renewal_may_be_repeated,
                the_next_attempt_removes_what_a_lost_one_left,
                former_attempts_have_no_say_over_others,
                forgetting_removes_what_lost_attempts_left,
                an_obstructed_call_ends_in_time_and_has_done_nothing,
                keys_of_different_bytes_are_different_locks,
                keys_of_full_length_keep_their_last_byte,
                texts_survive_unchanged,
                holders_come_in_the_order_of_their_bytes,
                slots_are_rows_of_their_own,
                another_number_of_slots_is_contested,
                an_expired_row_has_no_say_about_slots,
                a_block_refuses_new_grants_and_leaves_holders,
                a_block_can_be_changed_and_taken_away,
                a_block_ends_by_itself,
                a_success_concerns_those_who_ask_for_once_per,
                a_success_beside_contests_a_free_slot,
                a_release_leaves_what_its_terms_ask_for,
                a_dropped_lease_leaves_nothing,
                a_closed_row_is_no_lease_any_more,
                at_least_outlives_a_crash,
                a_crashed_run_has_not_succeeded,
                a_delay_keeps_an_expired_lease_shut,
                a_delay_is_not_for_a_clean_release,
                a_takeover_forgets_the_terms_before,
                waiters_are_shown_in_the_order_of_their_arrival,
                a_wait_ends_within_its_limit,
            }
            tests! { $setup::bare:
                init_may_be_called_by_many_at_once,
                init_may_be_repeated_under_holders,
                first_calls_without_init_work_or_say_what_to_do,
            }
            tests! { $setup::alone:
                rows_and_tokens_outlive_a_restart,
            }
        }
    };
}

contract!(memory, InMemory);
contract!(sqlite, InFile);
contract!(mariadb, OnMariadb);
contract!(odd_mariadb, OnOddMariadb);

/// Tables that people have made or changed by hand, and rights that they left
/// out: found at the first attempt to acquire, and without a trace of it.
mod wrong_tables {
    use super::*;

    type Dump = Vec<Vec<String>>;

    fn dump(database: &Database<'_>) -> Dump {
        database.query("SELECT * FROM dblock_lock ORDER BY lock_key, slot, token")
    }

    /// Asserts that attempts to acquire are refused with a text that holds all
    /// of `says`, and change no row.
    fn assert_refused(bench: &OnServer<'_>, says: &[&str]) {
        let before = dump(&bench.database);
        let mut store = bench.open();
        let widest = "x".repeat(dblock::lock::KEY_MAX_BYTES);
        // One store twice: it must not take the tables for right at the second
        // attempt.
        for name in ["held", "free", &widest] {
            match store.acquire(&request(name, long())) {
                Err(StoreError::Schema(text)) => {
                    for part in says {
                        assert!(text.contains(part), "{name}: no {part:?} in: {text}");
                    }
                    assert!(!text.contains(PASSWORD), "{text}");
                }
                other => panic!("{name} was not refused: {other:?}"),
            }
            assert_eq!(dump(&bench.database), before, "the attempt left a trace");
        }
    }

    /// Changes an empty table and asserts the refusal.
    fn refused_when_empty(changes: &[&str], says: &[&str]) {
        let bench = OnServer::ready(Server::shared());
        for change in changes {
            bench.database.query(change);
        }
        assert_refused(&bench, says);
        let error = open_admin(&bench.database).init();
        match error {
            Err(StoreError::Schema(text)) => {
                assert!(says.iter().all(|part| text.contains(part)), "init: {text}");
            }
            other => panic!("init has not refused: {other:?}"),
        }
        assert_eq!(dump(&bench.database), Dump::new());
    }

    /// The same, and also for a table with a row that was right when it was
    /// written.
    fn refused(changes: &[&str], says: &[&str]) {
        refused_when_empty(changes, says);
        let bench = OnServer::ready(Server::shared());
        acquire(bench.open().as_mut(), &request("held", long()));
        for change in changes {
            bench.database.query(change);
        }
        assert_eq!(dump(&bench.database).len(), 1);
        assert_refused(&bench, says);
    }

    #[test]
    fn without_a_primary_key() {
        refused(
            &["ALTER TABLE dblock_lock DROP PRIMARY KEY"],
            &["primary key"],
        );
    }

    #[test]
    fn with_another_primary_key() {
        for columns in ["lock_key", "lock_key(20), slot", "lock_key, slot, owner_id"] {
            let change =
                format!("ALTER TABLE dblock_lock DROP PRIMARY KEY, ADD PRIMARY KEY ({columns})");
            refused(&[&change], &["primary key", "(lock_key, slot)"]);
        }
    }

    #[test]
    fn of_another_engine() {
        refused(
            &["ALTER TABLE dblock_lock ENGINE=Aria"],
            &["engine", "Aria"],
        );
        // Its keys are shorter, so the table cannot but have two faults.
        refused(
            &["ALTER TABLE dblock_lock ENGINE=MyISAM, \
               DROP PRIMARY KEY, ADD PRIMARY KEY (lock_key(200), slot)"],
            &["engine", "MyISAM"],
        );
    }

    #[test]
    fn that_are_views() {
        refused(
            &[
                "RENAME TABLE dblock_lock TO behind",
                "CREATE VIEW dblock_lock AS SELECT * FROM behind",
            ],
            &["table"],
        );
    }

    #[test]
    fn with_a_narrow_key() {
        refused(
            &["ALTER TABLE dblock_lock MODIFY lock_key \
               VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"],
            &["lock_key"],
        );
    }

    #[test]
    fn with_a_key_that_may_be_null() {
        refused(
            &["ALTER TABLE dblock_lock DROP PRIMARY KEY, MODIFY lock_key \
               VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, \
               ADD UNIQUE KEY (lock_key, slot)"],
            &["lock_key"],
        );
    }

    #[test]
    fn that_fold_keys() {
        for (set, collation) in [
            ("utf8mb4", "utf8mb4_general_ci"),
            ("utf8mb4", "utf8mb4_unicode_ci"),
            ("latin1", "latin1_bin"),
        ] {
            let change = format!(
                "ALTER TABLE dblock_lock MODIFY lock_key \
                 VARCHAR(255) CHARACTER SET {set} COLLATE {collation} NOT NULL"
            );
            refused(&[&change], &["lock_key", collation]);
        }
    }

    #[test]
    fn with_a_second_unique_key() {
        for column in ["host", "token", "owner_id"] {
            let change = format!("ALTER TABLE dblock_lock ADD UNIQUE KEY only_one ({column})");
            refused(&[&change], &["unique", "only_one"]);
        }
    }

    #[test]
    fn that_keep_time_in_another_unit() {
        for kind in [
            "TIMESTAMP NOT NULL DEFAULT '2020-01-01'",
            "TIMESTAMP(3) NULL",
            "DATETIME NOT NULL",
            "INT NOT NULL",
            "VARCHAR(20) NOT NULL",
        ] {
            let change = format!("ALTER TABLE dblock_lock MODIFY expire_at {kind}");
            refused_when_empty(&[&change], &["expire_at"]);
        }
    }

    #[test]
    fn with_columns_missing() {
        for column in ["note", "renewals", "acquired_at"] {
            let change = format!("ALTER TABLE dblock_lock DROP COLUMN {column}");
            refused(&[&change], &[column]);
        }
    }

    #[test]
    fn with_columns_too_many() {
        refused(
            &["ALTER TABLE dblock_lock ADD COLUMN extra INT NOT NULL"],
            &["extra"],
        );
    }

    #[test]
    fn that_draw_no_tokens() {
        for default in ["", "DEFAULT 0", "DEFAULT 7"] {
            let change =
                format!("ALTER TABLE dblock_lock MODIFY token BIGINT UNSIGNED NOT NULL {default}");
            refused(&[&change], &["token"]);
        }
    }

    #[test]
    fn of_a_newer_version() {
        refused(
            &["UPDATE dblock_meta SET value='2' WHERE name='schema_version'"],
            &["version 2", "newer dblock"],
        );
    }

    #[test]
    fn of_no_known_version() {
        for change in [
            "UPDATE dblock_meta SET value='two' WHERE name='schema_version'",
            "UPDATE dblock_meta SET value='' WHERE name='schema_version'",
        ] {
            refused(&[change], &["version"]);
        }
    }

    /// What is missing altogether can be made.
    #[test]
    fn that_are_missing() {
        for change in [
            "DROP TABLE dblock_meta",
            "DELETE FROM dblock_meta WHERE name='schema_version'",
        ] {
            let bench = OnServer::ready(Server::shared());
            let grant = acquire(bench.open().as_mut(), &request("held", long()));
            bench.database.query(change);
            assert_refused(&bench, &["dblock init"]);
            let made = open_admin(&bench.database).init().expect("tables");
            assert_eq!(made, Initialized::Created);
            release(bench.open().as_mut(), &grant);
        }
        let bench = OnServer::ready(Server::shared());
        bench.database.query("DROP TABLE dblock_lock");
        match bench.open().acquire(&request("k", long())) {
            Err(StoreError::Schema(text)) => assert!(text.contains("dblock init"), "{text}"),
            other => panic!("not refused: {other:?}"),
        }
        let made = open_admin(&bench.database).init().expect("tables");
        assert_eq!(made, Initialized::Created);
        acquire(bench.open().as_mut(), &request("k", long()));
    }

    /// Tables that differ without harm are accepted.
    #[test]
    fn that_are_not_wrong() {
        let bench = OnServer::ready(Server::shared());
        for change in [
            "ALTER TABLE dblock_lock ADD COLUMN remark TEXT NULL FIRST",
            "ALTER TABLE dblock_lock ADD KEY by_host (host)",
            "ALTER TABLE dblock_lock MODIFY host \
             VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
            "ALTER TABLE dblock_lock ROW_FORMAT=COMPRESSED",
        ] {
            bench.database.query(change);
        }
        let mut store = bench.open();
        let grant = acquire(store.as_mut(), &request("k", long()));
        assert_eq!(only(rows(store.as_mut(), "k")).grant, grant);
        let init = store.init().expect("tables");
        assert_eq!(init, Initialized::Unchanged);
        release(store.as_mut(), &grant);
    }

    #[test]
    fn with_too_few_rights() {
        for right in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
            let bench = OnServer::ready(Server::shared());
            let (name, user) = (bench.database.name(), bench.database.user());
            let server = bench.database.server();
            server.execute(&format!("REVOKE {right} ON {name}.* FROM {user}@'%'"));
            assert_denied(&bench, right);
        }
    }

    /// A right that the attempt itself does not need, but renewal and release.
    #[test]
    fn with_a_key_that_may_not_be_read() {
        let bench = OnServer::ready(Server::shared());
        let (name, user) = (bench.database.name(), bench.database.user());
        let columns = "slot, owner_id, token, expire_at, acquired_at, renewals, ttl_ms, slots, \
                       kind, host, pid, user_name, command, note";
        for change in [
            format!("REVOKE SELECT ON {name}.* FROM {user}@'%'"),
            format!("GRANT SELECT ON {name}.dblock_meta TO {user}@'%'"),
            format!("GRANT SELECT ({columns}) ON {name}.dblock_lock TO {user}@'%'"),
        ] {
            bench.database.server().execute(&change);
        }
        assert_denied(&bench, "SELECT");
    }

    fn assert_denied(bench: &OnServer<'_>, right: &str) {
        match bench.open().acquire(&request("k", long())) {
            Err(StoreError::Denied(text)) => {
                assert!(text.contains(right), "{right}: {text}");
                assert!(text.contains("dblock_"), "{right}: {text}");
            }
            other => panic!("without {right}: {other:?}"),
        }
        assert_eq!(dump(&bench.database), Dump::new(), "without {right}");
    }

    #[test]
    fn that_a_user_may_not_make() {
        let database = Database::without_tables(Server::shared());
        match open(&database.url(), wait::LIMIT).init() {
            Err(StoreError::Denied(text)) => assert!(text.contains("CREATE"), "{text}"),
            other => panic!("not denied: {other:?}"),
        }
    }
}

/// Rows that come from a backup, from another program or from a person.
mod strange_rows {
    use super::*;

    const COLUMNS: &str = "lock_key, owner_id, token, expire_at, acquired_at, ttl_ms, kind, \
                           host, pid, user_name, command";

    /// Inserts a row as a server that is not strict takes it.
    fn insert(database: &Database<'_>, name: &str, expire_at: &str, changes: &[(&str, &str)]) {
        let defaults = [
            ("lock_key", format!("'{name}'")),
            ("owner_id", "UUID()".into()),
            ("token", "5".into()),
            ("expire_at", expire_at.into()),
            ("acquired_at", "'2024-02-03 04:05:06.789'".into()),
            ("ttl_ms", "30000".into()),
            ("kind", "'run'".into()),
            ("host", "'h'".into()),
            ("pid", "1".into()),
            ("user_name", "'u'".into()),
            ("command", "'c'".into()),
        ];
        let values = defaults.map(|(column, value)| {
            let change = changes.iter().find(|(changed, _)| *changed == column);
            change.map_or(value, |(_, changed)| (*changed).to_owned())
        });
        let values = values.join(", ");
        database.query(&format!(
            "SET STATEMENT sql_mode='' FOR INSERT INTO dblock_lock ({COLUMNS}) VALUES ({values})"
        ));
    }

    const LONG_AGO: &str = "1700000000000";
    const IN_2099: &str = "4070908800000";

    /// Asserts that a row can be seen, alone and among others.
    fn seen(store: &mut dyn Store, name: &str) -> Holder {
        let row = only(rows(store, name));
        let all = store.holders(None).expect("an answer");
        let among = all.into_iter().filter(|r| r.grant == row.grant).collect();
        // A row without a sound date does not show how time passes, so what
        // is told of time is left out.
        let timeless = Holder {
            held: row.held,
            remaining: row.remaining,
            ..only(among)
        };
        assert_eq!(row, timeless);
        row
    }

    #[test]
    fn of_the_past_are_taken_over_at_once() {
        let bench = OnServer::ready(Server::shared());
        let mut store = bench.open();
        let ends = [
            LONG_AGO,
            "0",
            "-1",
            "-9223372036854775808",
            "UNIX_TIMESTAMP()",
        ];
        for (number, end) in ends.into_iter().enumerate() {
            insert(&bench.database, &format!("past-{number}"), end, &[]);
        }
        for number in 0..ends.len() {
            let name = format!("past-{number}");
            let row = seen(store.as_mut(), &name);
            assert_eq!(row.state, State::Expired);
            assert_eq!(row.remaining, Duration::ZERO);
            let grant = acquire(store.as_mut(), &request(&name, long()));
            assert!(grant.token > row.grant.token);
            assert_eq!(seen(store.as_mut(), &name).grant, grant);
        }
    }

    #[test]
    fn of_the_future_are_busy_and_can_be_removed() {
        let bench = OnServer::ready(Server::shared());
        let mut store = bench.open();
        for (name, end) in [("2099", IN_2099), ("for ever", "9223372036854775807")] {
            insert(&bench.database, name, end, &[]);
            let row = seen(store.as_mut(), name);
            assert_eq!(row.state, State::Held);
            assert!(row.remaining > Duration::from_secs(365 * 24 * 3600));
            let told = busy(store.as_mut(), &request(name, long()));
            assert_eq!(only(told).grant, row.grant);
            release(store.as_mut(), &row.grant);
            acquire(store.as_mut(), &request(name, long()));
        }
    }

    #[test]
    fn that_make_no_sense_do_no_harm() {
        let bench = OnServer::ready(Server::shared());
        let mut store = bench.open();
        for (name, change) in [
            ("no uuid", ("owner_id", "'me'")),
            ("no owner", ("owner_id", "''")),
            ("no date", ("acquired_at", "0")),
            ("no such date", ("acquired_at", "'2024-02-31 12:00:00'")),
            ("a late date", ("acquired_at", "'9999-12-31 23:59:59.999'")),
            ("an early date", ("acquired_at", "'0001-01-01'")),
            ("no ttl", ("ttl_ms", "0")),
            ("all ttl", ("ttl_ms", "18446744073709551615")),
            ("no kind", ("kind", "''")),
            ("another kind", ("kind", "'ghost'")),
            ("a loud host", ("host", "'\u{1b}[2J\n'")),
            ("all token", ("token", "9007199254740993")),
        ] {
            insert(&bench.database, name, IN_2099, &[change]);
            let row = seen(store.as_mut(), name);
            assert_eq!(row.state, State::Held, "{name}");
            let told = busy(store.as_mut(), &request(name, long()));
            assert_eq!(only(told).grant, row.grant);
            extend(store.as_mut(), &row.grant, long(), Revive::Refused);
            release(store.as_mut(), &row.grant);
            acquire(store.as_mut(), &request(name, long()));
        }
    }

    /// Keys that dblock refuses to make, so that nobody can ask for them.
    #[test]
    fn of_keys_that_are_none_can_be_removed() {
        let bench = OnServer::ready(Server::shared());
        let mut store = bench.open();
        for name in ["a ", " a", "a\nb", "\u{85}"] {
            insert(&bench.database, name, IN_2099, &[]);
            let row = only(store.holders(None).expect("an answer"));
            assert_eq!(row.grant.key.as_str(), name);
            release(store.as_mut(), &row.grant);
        }
    }
}

/// The server draws the token before it has the row. Whoever is granted the
/// key and releases it in between has a larger one.
#[test]
fn a_token_that_was_drawn_early_is_drawn_again() {
    let bench = OnServer::ready(Server::shared());
    acquire(bench.open().as_mut(), &request("another", long()));
    let mut between = bench.database.server().connect().expect("a connection");
    assert!(between.select_db(bench.database.name()).is_ok());
    let mut run = |sql: &str| query_on(&mut between, sql).expect(sql);
    let row = "lock_key='k', slot=0, owner_id='x', expire_at=0, acquired_at=0, ttl_ms=0, \
               kind='run', host='', pid=0, user_name='', command=''";
    // The row of somebody who releases it keeps the attempt waiting.
    run(&format!("INSERT INTO dblock_lock SET {row}"));
    for command in ["BEGIN", "DELETE FROM dblock_lock WHERE lock_key='k'"] {
        run(command);
    }
    let grant = thread::scope(|scope| {
        let attempt = scope.spawn(|| acquire(bench.open().as_mut(), &request("k", long())));
        wait::until("the attempt to wait for the row", || {
            let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                           WHERE db=DATABASE() AND state='Update' AND time_ms>100";
            match run(waiting)[0][0].as_str() {
                "0" => Err("nobody waits".to_owned()),
                _ => Ok(()),
            }
        });
        run(&format!("INSERT INTO dblock_lock SET {row}"));
        run("DELETE FROM dblock_lock WHERE lock_key='k'");
        run("COMMIT");
        attempt.join().expect("it is granted")
    });
    let between: u64 = run("SELECT LAST_INSERT_ID()")[0][0]
        .parse()
        .expect("a number");
    assert!(grant.token > Token(between), "{grant:?} after {between}");
    let row = only(rows(bench.open().as_mut(), "k"));
    assert_eq!(row.grant, grant);
}
