//! The library: programs that hold a lock themselves, without a job.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, panic, thread};

use dblock::client::{Attempt, CancelHandle, Client, Ended, Error, Lease, Lock, Loss, Standing};
use dblock::lock::{Claimant, Grant, Holder, Key, Owner, Request, Token, Ttl, Waiter};
use dblock::store::memory::{Fault, MemoryStore, MemoryWorld};
use dblock::store::{
    Acquired, End, Endpoint, Initialized, Limits, Released, Renewed, Revive, Store, StoreError,
    Waited,
};

use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::{PASSWORD, on_every_store, wait};

on_every_store!(
    programs_and_runs_exclude_each_other,
    a_lease_is_renewed_until_it_is_released,
    a_deleted_row_is_told_at_the_next_renewal,
    a_lost_lease_changes_nothing_of_its_successors,
    a_force_release_is_told,
    a_drop_frees_the_lock,
    a_panic_frees_the_lock,
    a_wait_ends_in_time,
    a_wait_is_cancelled,
    a_wait_is_won,
    slots_are_shared,
    threads_take_turns,
    a_release_counts_as_success_and_a_drop_does_not,
    a_lease_by_hand_is_one_for_scripts_too,
    a_lease_by_hand_is_not_revived,
);

const SECOND: Duration = Duration::from_secs(1);

fn client_at(url: &str) -> Client {
    Client::open_with_password(url, PASSWORD).expect("the URL is right")
}

fn client(place: &Place) -> Client {
    client_at(&place.url())
}

/// Returns a lock with the key `k`.
fn lock(place: &Place) -> Lock {
    client(place).lock("k").expect("a key")
}

#[track_caller]
fn held<T: std::fmt::Debug>(answer: Result<Attempt<T>, Error>) -> T {
    match answer {
        Ok(Attempt::Held(lease)) => lease,
        other => panic!("not held: {other:?}"),
    }
}

#[track_caller]
fn busy<T: std::fmt::Debug>(answer: Result<Attempt<T>, Error>) -> Vec<Holder> {
    match answer {
        Ok(Attempt::Busy(rows)) => rows,
        other => panic!("not busy: {other:?}"),
    }
}

/// Waits until a loss is told, by whatever asks, and returns it.
#[track_caller]
fn told(lease: &Lease) -> Loss {
    let loss = match lease.watch().wait(wait::LIMIT) {
        Standing::Lost(loss) => loss,
        other => panic!("not told: {other:?}"),
    };
    assert!(!lease.is_held());
    assert_eq!(lease.check(), Err(loss.clone()));
    loss
}

fn programs_and_runs_exclude_each_other(place: &Place) {
    let lease = held(lock(place).note("a ticket").acquire());
    let rows = busy(lock(place).acquire());
    assert_eq!(rows[0].grant, *lease.grant());
    let pid = format!("pid {}", std::process::id());
    let run = place.run("k").job("echo never").run();
    run.code(75)
        .stdout("")
        .one_line(&["\"k\" is held by ", &pid]);
    let row = place.row("k");
    assert_eq!((row.kind.as_str(), row.note.as_str()), ("run", "a ticket"));
    assert_eq!(row.token, lease.token().0);
    assert_eq!(lease.release().expect("it is told"), Ended::Released);
    place.assert_free("k");

    let gate = place.gate();
    let job = format!("echo $$; {}", gate.wait());
    let mut running = place.run("k").job(&job).start();
    running.job();
    assert_eq!(busy(lock(place).acquire()).len(), 1);
    let before = place.row("k").token;
    gate.open();
    let lease = held(lock(place).wait_for(wait::LIMIT).acquire());
    assert!(lease.token() > Token(before));
    running.wait().code(0);
}

fn a_lease_is_renewed_until_it_is_released(place: &Place) {
    let handlers = caught_signals();
    let lease = held(lock(place).ttl(2 * SECOND).acquire());
    let begin = Instant::now();
    while begin.elapsed() < 3 * SECOND {
        place.wait_for_renewal("k");
        assert!(lease.is_held());
        assert_eq!(lease.check(), Ok(()));
        assert!(lease.time_left() < 2 * SECOND);
    }
    assert_eq!(caught_signals(), handlers, "signals are the program's own");
    let watch = lease.watch();
    assert_eq!(lease.release().expect("it is told"), Ended::Released);
    assert_eq!(watch.wait(wait::LIMIT), Standing::Released);
    assert!(!watch.is_held() && watch.time_left().is_zero());
    place.assert_free("k");
}

/// Returns the set of signals that this process handles.
fn caught_signals() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel shows it");
    field(&status, "SigCgt:").to_owned()
}

/// Returns a field of a status; see proc_pid_status(5).
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name));
    value.expect("the kernel shows it").trim()
}

/// The program's handlers run on its own threads.
#[test]
fn signals_do_not_reach_the_threads_of_a_lease() {
    let place = Place::embedded();
    let _lease = held(lock(&place).acquire());
    // SIGTERM among them; those of other tests may just have begun.
    const TERM: u64 = 1 << 14;
    wait::until("the threads to block signals", || {
        let threads = fs::read_dir("/proc/self/task").expect("the kernel shows them");
        let all = threads.flatten().map(|thread| thread.path().join("status"));
        // One may end while it is looked at.
        let all = all.filter_map(|status| fs::read_to_string(status).ok());
        let ours: Vec<u64> = all
            .filter(|status| field(status, "Name:") == "dblock-lease")
            .map(|status| u64::from_str_radix(field(&status, "SigBlk:"), 16).expect("a set"))
            .collect();
        if !ours.is_empty() && ours.iter().all(|blocked| blocked & TERM != 0) {
            Ok(())
        } else {
            Err(format!("{ours:x?}"))
        }
    });
}

fn a_deleted_row_is_told_at_the_next_renewal(place: &Place) {
    let lease = held(lock(place).ttl(6 * SECOND).acquire());
    let left = u64::try_from(place.left_ms("k")).expect("the lease is alive");
    let begin = Instant::now();
    place.delete("k");
    assert_eq!(told(&lease), Loss::Taken(Vec::new()));
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(left), "{took:?} of {left} ms");
    assert_eq!(lease.time_left(), Duration::ZERO);
    let ended = lease.release().expect("it is known");
    assert_eq!(ended, Ended::Lost(Loss::Taken(Vec::new())));
}

fn a_lost_lease_changes_nothing_of_its_successors(place: &Place) {
    let lease = held(lock(place).ttl(2 * SECOND).acquire());
    let successor = place.steal("k");
    let loss = told(&lease);
    assert!(loss.to_string().contains("thief-host"), "{loss}");
    assert_eq!(place.row("k"), successor);
    drop(lease);
    assert_eq!(place.row("k"), successor);

    // Released before the loss is noticed.
    let second = client(place).lock("second").expect("a key");
    let lease = held(second.acquire());
    let successor = place.steal("second");
    let ended = lease.release().expect("it is told");
    assert_eq!(ended, Ended::Lost(Loss::Taken(Vec::new())));
    assert_eq!(place.row("second"), successor);
}

fn a_force_release_is_told(place: &Place) {
    let lease = held(lock(place).ttl(3 * SECOND).acquire());
    let release = place.dblock().args(["force-release", "k", "--yes"]);
    release.run().code(0);
    assert!(matches!(told(&lease), Loss::Taken(_)));
    drop(lease);
    place.assert_free("k");
}

fn a_drop_frees_the_lock(place: &Place) {
    let lease = held(lock(place).acquire());
    let watch = lease.watch();
    drop(lease);
    assert_eq!(watch.standing(), Standing::Released);
    place.assert_free("k");
    drop(held(lock(place).acquire()));
}

fn a_panic_frees_the_lock(place: &Place) {
    let lease = held(lock(place).acquire());
    let work = thread::spawn(move || {
        let _lease = lease;
        // As a panic, but without a word.
        panic::resume_unwind(Box::new("the work has failed"));
    });
    work.join().expect_err("it panics");
    place.assert_free("k");
}

fn a_wait_ends_in_time(place: &Place) {
    let lease = held(lock(place).acquire());
    let begin = Instant::now();
    let rows = busy(lock(place).wait_for(SECOND).acquire());
    let took = begin.elapsed();
    assert!(took >= SECOND && took < wait::LIMIT, "{took:?}");
    assert_eq!(rows[0].grant, *lease.grant());
    assert_eq!(place.row("k").token, lease.token().0);
}

/// Waits until somebody is shown to wait for `k`.
#[track_caller]
fn wait_for_waiter(client: &Client) {
    let mut store = client.store();
    wait::until("a waiter", || match store.waiters(None) {
        Ok(waiters) if waiters.is_empty() => Err("nobody waits".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    });
}

fn a_wait_is_cancelled(place: &Place) {
    let lease = held(lock(place).acquire());
    let handle = CancelHandle::new().expect("a descriptor");
    let lock = lock(place).wait_forever().cancel_by(&handle);
    let again = lock.clone();
    let waiting = thread::spawn(move || lock.acquire());
    wait_for_waiter(&client(place));
    assert!(!handle.is_cancelled());
    handle.cancel();
    let answer = waiting.join().expect("it does not panic");
    assert!(matches!(answer, Ok(Attempt::Cancelled)), "{answer:?}");
    let waiters = client(place).store().waiters(None).expect("an answer");
    assert_eq!(waiters, [], "left behind");
    // Once is for ever, and also for what is held by hand.
    assert!(handle.is_cancelled());
    assert!(matches!(again.acquire_by_hand(), Ok(Attempt::Cancelled)));
    assert_eq!(place.row("k").token, lease.token().0);
}

fn a_wait_is_won(place: &Place) {
    let lease = held(lock(place).acquire());
    let waiting = lock(place).wait_forever();
    let waiting = thread::spawn(move || held(waiting.acquire()));
    wait_for_waiter(&client(place));
    let first = lease.token();
    assert_eq!(lease.release().expect("it is told"), Ended::Released);
    let second = waiting.join().expect("it is granted");
    assert!(second.token() > first);
}

fn slots_are_shared(place: &Place) {
    let two = lock(place).slots(2);
    let first = held(two.acquire());
    let second = held(two.acquire());
    assert_ne!(first.slot(), second.slot());
    assert_eq!(busy(two.acquire()).len(), 2);
    let answer = lock(place).slots(3).acquire();
    assert!(matches!(answer, Err(Error::SlotsDiffer(_))), "{answer:?}");
    for wrong in [0, 1001] {
        let answer = lock(place).slots(wrong).acquire();
        assert!(matches!(answer, Err(Error::Slots)), "{answer:?}");
    }
    let freed = second.slot();
    drop(second);
    // The CRC-32 of each is odd or even; see `--slot-by`.
    let by_value = |value: &str| two.clone().slot_by(value).acquire();
    let value = ["a", "b", "c", "d"]
        .into_iter()
        .find(|value| dblock::lock::slot_of(value, 2) == freed)
        .expect("not all are the same");
    let third = held(by_value(value));
    assert_eq!(third.slot(), freed);
    drop(first);
    assert_eq!(busy(by_value(value)).len(), 1, "its own slot and no other");
}

/// Each has a client of its own, as if they were programs.
fn threads_take_turns(place: &Place) {
    let inside = Arc::new(AtomicBool::new(false));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let work = |lock: Lock| {
        let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
        thread::spawn(move || {
            for _ in 0..3 {
                let lease = held(lock.acquire());
                assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                tokens
                    .lock()
                    .expect("nobody has failed")
                    .push(lease.token());
                thread::yield_now();
                assert!(inside.swap(false, Ordering::SeqCst), "two at once");
                assert_eq!(lease.release().expect("it is told"), Ended::Released);
            }
        })
    };
    let threads: Vec<_> = (0..5).map(|_| work(lock(place).wait_forever())).collect();
    for thread in threads {
        thread.join().expect("it was alone each time");
    }
    let tokens = tokens.lock().expect("nobody has failed");
    assert_eq!(tokens.len(), 15);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    place.assert_free("k");
}

fn a_release_counts_as_success_and_a_drop_does_not(place: &Place) {
    let daily = lock(place).once_per(Duration::from_secs(3600));
    drop(held(daily.acquire()));
    let lease = held(daily.acquire());
    assert_eq!(lease.release().expect("it is told"), Ended::Released);
    assert_eq!(busy(daily.acquire()).len(), 1);
    // Who does not ask for the same is let in.
    drop(held(lock(place).acquire()));
}

fn a_lease_by_hand_is_one_for_scripts_too(place: &Place) {
    let mut lease = held(lock(place).ttl(60 * SECOND).acquire_by_hand());
    assert_eq!(place.row("k").kind, "acquire");
    let left = lease.time_left();
    assert!(left > 20 * SECOND && left <= 57 * SECOND, "{left:?}");
    let renewed = lease.renew(600 * SECOND).expect("an answer");
    assert_eq!(renewed, Renewed::Extended);
    assert!(lease.time_left() > 400 * SECOND);
    assert_eq!(place.row("k").ttl_ms, 600_000);

    let grant = lease.grant().clone();
    drop(lease);
    assert_eq!(place.row("k").owner, grant.owner.as_str(), "not given back");
    let by_script = |command: &str| {
        let owner = grant.owner.as_str();
        let dblock = place.dblock();
        dblock.args([command, "--key", "k", "--owner", owner]).run()
    };
    by_script("renew").code(0);
    let answer = client(place).renew(&grant, 60 * SECOND);
    assert_eq!(answer.expect("an answer"), Renewed::Extended);
    by_script("release").code(0);
    place.assert_free("k");
    let answer = client(place).release(&grant).expect("an answer");
    assert_eq!(answer, Released::NotHeld);
    let answer = client(place).renew(&grant, 60 * SECOND).expect("an answer");
    assert_eq!(answer, Renewed::Lost(Vec::new()));

    let lease = held(lock(place).acquire_by_hand());
    assert_eq!(lease.release().expect("an answer"), Released::Released);
    place.assert_free("k");
}

fn a_lease_by_hand_is_not_revived(place: &Place) {
    let mut lease = held(lock(place).ttl(SECOND).acquire_by_hand());
    wait::until("the lease to expire", || match place.left_ms("k") {
        left if left <= 0 => Ok(()),
        left => Err(format!("{left} ms left")),
    });
    assert_eq!(lease.time_left(), Duration::ZERO, "it ends first here");
    let before = place.row("k");
    assert!(matches!(lease.renew(60 * SECOND), Ok(Renewed::Lost(_))));
    assert_eq!(place.row("k"), before);
    // It is taken out of the table, but was not held to the end.
    let released = lease.release().expect("an answer");
    assert_eq!(released, Released::NotHeld);
    place.assert_free("k");
}

/// Breaks the network right after a renewal, so that the row has its longest
/// life, and checks by the server's clock that the loss is told before it
/// ends.
fn the_network_is_lost(lose: impl FnOnce(&Proxy)) {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let client = client_at(&place.database().url_at(proxy.port()));
    let lease = held(client.lock("k").expect("a key").ttl(3 * SECOND).acquire());
    place.wait_for_renewal("k");
    lose(&proxy);
    let before = place.row("k");
    let loss = told(&lease);
    let (left, own) = (place.left_ms("k"), lease.time_left());
    assert!(matches!(loss, Loss::Late(_)), "{loss:?}");
    assert!(left > 0, "the lease had expired {} ms before", -left);
    assert!(own < Duration::from_secs(1), "{own:?}");
    assert_eq!(place.row("k"), before, "nothing has reached the server");

    let begin = Instant::now();
    drop(lease);
    let took = begin.elapsed();
    assert!(took < wait::LIMIT, "a drop is bounded: {took:?}");
}

#[test]
fn d3_a_loss_is_told_before_the_lease_ends_when_packets_vanish() {
    the_network_is_lost(Proxy::hold);
}

#[test]
fn d3_a_loss_is_told_before_the_lease_ends_when_connections_are_refused() {
    the_network_is_lost(Proxy::refuse);
}

#[test]
fn d2_a_short_cut_of_the_network_is_survived_by_a_program() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let client = client_at(&place.database().url_at(proxy.port()));
    let lease = held(client.lock("k").expect("a key").ttl(6 * SECOND).acquire());
    place.wait_for_renewal("k");
    proxy.refuse();
    let connections = proxy.connections();
    wait::until("a vain attempt", || {
        if proxy.connections() > connections {
            Ok(())
        } else {
            Err(format!("{lease:?}"))
        }
    });
    proxy.pass();
    place.wait_for_renewal("k");
    assert!(lease.is_held());
    assert_eq!(lease.release().expect("it is told"), Ended::Released);
    place.assert_free("k");
}

/// Who was told in time, and stops in time, keeps others out until then: the
/// row is renewed again as soon as that is possible.
#[test]
fn a_lost_lease_is_kept_until_the_program_has_stopped() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let client = client_at(&place.database().url_at(proxy.port()));
    let lease = held(client.lock("k").expect("a key").ttl(3 * SECOND).acquire());
    place.wait_for_renewal("k");
    proxy.refuse();
    let loss = told(&lease);
    proxy.pass();
    place.wait_for_renewal("k");
    assert!(!lease.is_held(), "what is lost stays lost");
    assert_eq!(busy(lock(&place).acquire()).len(), 1);
    let ended = lease.release().expect("it is known");
    assert_eq!(ended, Ended::Lost(loss));
    place.assert_free("k");
}

#[test]
fn a_release_that_nobody_hears_is_an_error_and_not_for_ever() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let client = client_at(&place.database().url_at(proxy.port()));
    let lease = held(client.lock("k").expect("a key").ttl(3 * SECOND).acquire());
    proxy.hold();
    let answer = lease.release();
    assert!(matches!(answer, Err(Error::NotReleased(_))), "{answer:?}");
    assert_eq!(place.rows("k").len(), 1);
}

#[test]
fn a_database_that_cannot_be_reached_is_an_error() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let client = client_at(&place.database().url_at(proxy.port()));
    proxy.refuse();
    let lock = client.lock("k").expect("a key");
    for answer in [lock.acquire().map(drop), lock.acquire_by_hand().map(drop)] {
        match answer {
            Err(Error::Store(error)) => assert!(error.may_pass(), "{error:?}"),
            other => panic!("{other:?}"),
        }
    }
    proxy.pass();
    drop(held(lock.acquire()));
}

#[test]
fn what_makes_no_sense_is_refused_before_any_connection() {
    let place = Place::embedded();
    let client = client(&place);
    assert!(matches!(Client::open("nothing"), Err(Error::Url(_))));
    assert!(matches!(client.lock(" k"), Err(Error::Key(_))));
    let refused = |lock: Lock| lock.acquire().expect_err("it makes no sense");
    let short = refused(lock(&place).ttl(SECOND / 2));
    assert!(matches!(short, Error::Ttl(_)), "{short:?}");
    let long = refused(lock(&place).ttl(10 * SECOND).stop_within(5 * SECOND));
    let most = Duration::from_millis(4500);
    assert!(matches!(long, Error::StopWithin(length) if length == most));
    assert_eq!(place.rows("k"), []);
}

#[test]
fn a_client_may_be_shared_and_a_lease_moved_and_watched() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Client>();
    shared::<Lock>();
    shared::<Lease>();
    shared::<CancelHandle>();
    shared::<dblock::client::Watch>();
    shared::<dblock::client::ByHand>();
    shared::<Error>();
}

/// A store in memory whose first client meets these faults.
#[derive(Debug)]
struct Faulty(MemoryWorld, Mutex<Vec<Fault>>);

impl Endpoint for Faulty {
    fn open(&self, _: Limits) -> Box<dyn Store> {
        let store = self.0.connect();
        for fault in self.1.lock().expect("nobody has failed").drain(..) {
            store.script().then(fault);
        }
        Box::new(store)
    }
}

/// Returns a lock with a TTL of 2 s on such a store, and its rows.
fn faulty(faults: Vec<Fault>) -> (Lock, impl Fn() -> Vec<Holder>) {
    let world = MemoryWorld::new();
    let endpoint: Box<dyn Endpoint> = Box::new(Faulty(world.clone(), Mutex::new(faults)));
    let lock = Client::from(endpoint).lock("k").expect("a key");
    let rows = move || world.connect().holders(None).expect("it has no faults");
    (lock.ttl(2 * SECOND), rows)
}

/// More than half of the TTL.
const LATE: Fault = Fault::DelayReply(Duration::from_millis(1100));

#[test]
fn a_lease_that_is_granted_late_is_proven_before_it_is_given_out() {
    let (lock, rows) = faulty(vec![LATE]);
    let lease = held(lock.acquire());
    assert_eq!(rows()[0].renewals, 1);
    assert!(lease.is_held());
}

#[test]
fn a_lease_that_cannot_be_proven_is_given_back() {
    let refused = Fault::Refuse(StoreError::ReadOnly("failover".into()));
    let (lock, rows) = faulty(vec![LATE, Fault::Pass, refused]);
    let answer = lock.acquire();
    assert!(matches!(answer, Err(Error::Unproven(_))), "{answer:?}");
    assert_eq!(rows(), []);

    let (lock, rows) = faulty(vec![LATE]);
    let answer = lock.acquire_by_hand();
    assert!(matches!(answer, Err(Error::Unproven(_))), "{answer:?}");
    assert_eq!(rows(), []);
}

#[test]
fn an_unknown_outcome_is_found_out() {
    // The first attempt's row is in the way of the second.
    let (lock, rows) = faulty(vec![Fault::LoseReply]);
    let lease = held(lock.acquire());
    assert_eq!(rows()[0].grant, *lease.grant());
    assert_eq!(lease.release().expect("it is told"), Ended::Released);

    // The second attempt to release finds that the first has worked.
    let (lock, rows) = faulty(vec![Fault::Pass, Fault::LoseReply]);
    let lease = held(lock.acquire());
    assert_eq!(lease.release().expect("it is told"), Ended::Released);
    assert_eq!(rows(), []);
}

/// A thread that dies is a loss, and no silence.
#[test]
fn a_renewal_that_dies_is_told() {
    let endpoint: Box<dyn Endpoint> = Box::new(Brittle(MemoryWorld::new()));
    let lock = Client::from(endpoint).lock("k").expect("a key");
    let lease = held(lock.ttl(SECOND).acquire());
    assert_eq!(told(&lease), Loss::Died);
    let ended = lease.release().expect("it is known");
    assert_eq!(ended, Ended::Lost(Loss::Died));
}

#[derive(Debug)]
struct Brittle(MemoryWorld);

impl Endpoint for Brittle {
    fn open(&self, _: Limits) -> Box<dyn Store> {
        Box::new(BrittleStore(self.0.connect()))
    }
}

/// A store that works once and then takes its thread along.
#[derive(Debug)]
struct BrittleStore(MemoryStore);

fn die() -> ! {
    // As a panic, but without a word.
    panic::resume_unwind(Box::new("the store has a fault"))
}

impl Store for BrittleStore {
    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError> {
        self.0.acquire(request)
    }

    fn renew(&mut self, _: &Grant, _: Ttl, _: Revive) -> Result<Renewed, StoreError> {
        die()
    }

    fn release(&mut self, _: &Grant, _: End) -> Result<Released, StoreError> {
        die()
    }

    fn wait(&mut self, _: &Waiter, _: Duration) -> Result<Waited, StoreError> {
        die()
    }

    fn waiters(&mut self, _: Option<&Key>) -> Result<Vec<Waiter>, StoreError> {
        die()
    }

    fn block(&mut self, _: &Key, _: Option<Duration>, _: &Claimant) -> Result<(), StoreError> {
        die()
    }

    fn unblock(&mut self, _: &Key) -> Result<bool, StoreError> {
        die()
    }

    fn forget(&mut self, _: &Key, _: &[Owner]) -> Result<(), StoreError> {
        die()
    }

    fn holders(&mut self, _: Option<&Key>) -> Result<Vec<Holder>, StoreError> {
        die()
    }

    fn init(&mut self) -> Result<Initialized, StoreError> {
        die()
    }
}
