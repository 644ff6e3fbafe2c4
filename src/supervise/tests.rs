//! Courses of events, and every order of them.

use super::*;
use crate::lock::Ttl;
use proptest::prelude::*;

/// A TTL of 12 s: renewal after 4 s, TERM at 8.4 s, KILL at 11.4 s.
fn line() -> Timeline {
    let ttl = Ttl::new(Duration::from_secs(12)).expect("a TTL");
    Timeline::new(ttl, None).expect("fits")
}

fn at(millis: u64) -> Tick {
    Tick::from_boot(Duration::from_millis(1_000_000 + millis))
}

/// How the lease is given back: after a success, after anything else, and
/// after a job that never ran.
const SUCCEEDED: Action = Action::Release(End::Finished { succeeded: true });
const FAILED: Action = Action::Release(End::Finished { succeeded: false });
const DROPPED: Action = Action::Release(End::Dropped);

fn plan(timeout: Option<Duration>, leftovers: Leftovers) -> Plan {
    Plan {
        line: line(),
        timeout,
        leftovers,
        delays_after_loss: false,
    }
}

fn begin(timeout: Option<Duration>, now: u64) -> (Supervisor, Vec<Action>) {
    Supervisor::begin(plan(timeout, Leftovers::Wait), at(0), at(now))
}

/// A job under way whose deadline is 11.4 s.
fn running_with(leftovers: Leftovers, foreground: bool) -> Supervisor {
    let (mut machine, first) = Supervisor::begin(plan(None, leftovers), at(0), at(10));
    assert_eq!(first, [Action::Start(at(11_400))]);
    assert_eq!(machine.step(Event::Started, at(20)), []);
    if foreground {
        assert_eq!(machine.step(Event::HasForeground, at(20)), []);
    }
    machine
}

fn running() -> Supervisor {
    running_with(Leftovers::Wait, false)
}

const TREE: Action = Action::Kill(Scope::Tree);

fn unavailable() -> StoreError {
    StoreError::Unavailable("cut".into())
}

fn extended(sent: u64) -> Event {
    Event::Answer(at(sent), Reply::Renewed(Ok(Renewed::Extended)))
}

fn failed(sent: u64) -> Event {
    Event::Answer(at(sent), Reply::Renewed(Err(unavailable())))
}

fn lost(sent: u64) -> Event {
    Event::Answer(at(sent), Reply::Renewed(Ok(Renewed::Lost(Vec::new()))))
}

fn released(answer: Result<Released, StoreError>) -> Event {
    Event::Answer(at(0), Reply::Released(answer))
}

/// Without what is only said, and without later deadlines for the guard.
fn deeds(actions: Vec<Action>) -> Vec<Action> {
    actions
        .into_iter()
        .filter(|action| !matches!(action, Action::Say(_) | Action::Extend(_)))
        .collect()
}

#[test]
fn an_ordinary_run() {
    let mut machine = running();
    assert_eq!(machine.wake_at(), Some(at(4000)));
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    assert_eq!(deeds(machine.step(extended(4000), at(4003))), []);
    assert_eq!(machine.wake_at(), Some(at(8000)));
    assert_eq!(
        machine.step(Event::JobEnded(Ended::Exited(3)), at(5000)),
        []
    );
    assert_eq!(machine.step(Event::JobGone, at(5000)), [FAILED]);
    assert_eq!(
        machine.step(released(Ok(Released::Released)), at(5002)),
        [Action::Finish(Outcome::Ended(Ended::Exited(3)))]
    );
    assert_eq!(machine.wake_at(), None);
}

#[test]
fn no_job_on_half_a_lease() {
    let (mut machine, first) = begin(None, 6000);
    assert_eq!(first, [Action::Renew]);
    assert_eq!(
        deeds(machine.step(extended(6000), at(6001))),
        [Action::Start(at(17_400))]
    );

    let (mut machine, _) = begin(None, 6000);
    assert_eq!(deeds(machine.step(extended(6000), at(12_001))), [DROPPED]);
    let end = machine.step(released(Ok(Released::Released)), at(12_002));
    assert!(matches!(&end[..], [Action::Finish(Outcome::Unproven(_))]));

    let (mut machine, _) = begin(None, 6000);
    assert_eq!(machine.step(Event::Signal(Sig::Int), at(6001)), [DROPPED]);
    let end = machine.step(released(Ok(Released::Released)), at(6002));
    assert_eq!(end, [Action::Finish(Outcome::Interrupted(Sig::Int))]);
}

#[test]
fn a_blip_is_ridden_out_with_one_warning() {
    let mut machine = running();
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    let mut warnings = 0;
    let mut now = 4010;
    for _ in 0..5 {
        let actions = machine.step(failed(now), at(now));
        warnings += actions
            .iter()
            .filter(|a| matches!(a, Action::Say(Note::RenewalsFailing(..))))
            .count();
        if !actions.contains(&Action::Renew) {
            now += 400;
            assert_eq!(machine.step(Event::Timer, at(now)), [Action::Renew]);
        }
    }
    assert_eq!(warnings, 1);
    let actions = machine.step(extended(now), at(now + 1));
    assert!(actions.contains(&Action::Say(Note::Recovered)));
    assert_eq!(deeds(actions), []);
    // One failure alone is no incident: the retry follows at once.
    let mut machine = running();
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    let actions = machine.step(failed(4000), at(4001));
    assert!(
        !actions
            .iter()
            .any(|a| matches!(a, Action::Say(Note::RenewalsFailing(..))))
    );
    assert_eq!(deeds(actions), [Action::Renew]);
}

#[test]
fn a_silent_store_does_not_delay_the_end() {
    let mut machine = running();
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    assert_eq!(machine.wake_at(), Some(at(8400)));
    assert_eq!(
        deeds(machine.step(Event::Timer, at(8400))),
        [Action::Terminate(Scope::Tree)]
    );
    assert_eq!(machine.wake_at(), Some(at(11_400)));
    assert_eq!(machine.step(Event::Timer, at(11_400)), [TREE]);
    assert_eq!(machine.step(Event::Timer, at(11_450)), [TREE]);
    let killed = Ended::Signaled(9);
    assert_eq!(machine.step(Event::JobEnded(killed), at(11_460)), []);
    assert_eq!(machine.step(Event::JobGone, at(11_460)), [FAILED]);
    let end = machine.step(released(Err(StoreError::Denied("no".into()))), at(11_500));
    assert_eq!(
        end,
        [Action::Finish(Outcome::Lost(
            Loss::Late(None),
            Some(killed)
        ))]
    );
}

#[test]
fn not_yours_is_final_at_once() {
    let mut machine = running();
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    assert_eq!(
        deeds(machine.step(lost(4000), at(4001))),
        [Action::Terminate(Scope::Tree)]
    );
    assert_eq!(machine.wake_at(), Some(at(7001)));
    assert_eq!(
        machine.step(Event::JobEnded(Ended::Exited(0)), at(4100)),
        []
    );
    assert_eq!(
        machine.step(Event::JobGone, at(4100)),
        [Action::Finish(Outcome::Lost(
            Loss::Answered(Vec::new()),
            Some(Ended::Exited(0))
        ))],
        "nothing of the successor is touched"
    );
}

#[test]
fn not_yours_that_comes_late_leaves_no_grace() {
    let mut machine = running();
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    let actions = deeds(machine.step(lost(4000), at(11_500)));
    assert_eq!(actions, [TREE]);
}

#[test]
fn a_dead_keeper_is_a_lost_lease() {
    let mut machine = running();
    let gone = Event::Answer(at(100), Reply::Gone);
    assert_eq!(
        deeds(machine.step(gone, at(100))),
        [Action::Terminate(Scope::Tree)]
    );
}

#[test]
fn a_job_that_ended_before_the_loss_keeps_its_status() {
    let mut machine = running();
    assert_eq!(
        machine.step(Event::JobEnded(Ended::Exited(7)), at(3000)),
        []
    );
    assert_eq!(machine.step(Event::JobGone, at(3000)), [FAILED]);
    let end = machine.step(released(Ok(Released::NotHeld)), at(3001));
    assert_eq!(
        end,
        [
            Action::Say(Note::LostBefore(Vec::new())),
            Action::Finish(Outcome::Ended(Ended::Exited(7)))
        ]
    );
}

#[test]
fn a_lost_lease_with_a_delay_stays_in_the_table() {
    for delays_after_loss in [false, true] {
        let plan = Plan {
            delays_after_loss,
            ..plan(None, Leftovers::Wait)
        };
        let (mut machine, _) = Supervisor::begin(plan, at(0), at(10));
        assert_eq!(machine.step(Event::Started, at(20)), []);
        // TERM at 8.4 s, KILL at 11.4 s.
        let _stopping = machine.step(Event::Timer, at(8400));
        let actions = machine.step(Event::JobGone, at(9000));
        if delays_after_loss {
            assert!(matches!(actions[..], [Action::Finish(Outcome::Lost(..))]));
        } else {
            assert_eq!(actions, [FAILED]);
        }
    }
}

#[test]
fn a_release_is_repeated_and_bounded() {
    let mut machine = running();
    let ended = Event::JobEnded(Ended::Exited(0));
    assert_eq!(machine.step(ended, at(3000)), []);
    assert_eq!(machine.step(Event::JobGone, at(3000)), [SUCCEEDED]);
    assert_eq!(machine.step(released(Err(unavailable())), at(3001)), []);
    let retry = machine.wake_at().expect("a moment");
    assert_eq!(machine.step(Event::Timer, retry), [SUCCEEDED]);
    let give_up = machine.wake_at().expect("a moment");
    assert_eq!(give_up, at(3000) + line().call_limit() * 2);
    let end = machine.step(Event::Timer, give_up);
    assert!(matches!(
        &end[..],
        [
            Action::Say(Note::NotReleased(..)),
            Action::Finish(Outcome::Ended(_))
        ]
    ));

    // "Not held" after an unknown outcome means that it had worked.
    let mut machine = running();
    let ended = Event::JobEnded(Ended::Exited(0));
    assert_eq!(machine.step(ended, at(3000)), []);
    assert_eq!(machine.step(Event::JobGone, at(3000)), [SUCCEEDED]);
    assert_eq!(machine.step(released(Err(unavailable())), at(3001)), []);
    let end = machine.step(released(Ok(Released::NotHeld)), at(3500));
    assert!(matches!(&end[..], [Action::Finish(Outcome::Ended(_))]));
}

#[test]
fn a_second_stop_signal_shortens_the_grace_and_never_restarts_it() {
    let mut machine = running();
    let actions = machine.step(Event::Signal(Sig::Int), at(1000));
    assert_eq!(actions, [Action::Forward(Sig::Int)]);
    assert_eq!(machine.wake_at(), Some(at(4000)), "grace and renewal");
    let actions = machine.step(Event::Signal(Sig::Term), at(2000));
    assert_eq!(actions, [Action::Forward(Sig::Term)]);
    assert_eq!(machine.wake_at(), Some(at(3000)));
    assert_eq!(deeds(machine.step(Event::Timer, at(3000))), [TREE]);
    assert_eq!(
        machine.step(Event::JobEnded(Ended::Signaled(9)), at(3001)),
        []
    );
    assert_eq!(machine.step(Event::JobGone, at(3001)), [FAILED]);
    let end = machine.step(released(Ok(Released::Released)), at(3002));
    assert_eq!(end, [Action::Finish(Outcome::Ended(Ended::Signaled(9)))]);
}

#[test]
fn other_signals_are_passed_on_and_end_nothing() {
    let mut machine = running();
    for sig in [
        Sig::Usr1,
        Sig::Usr2,
        Sig::Alrm,
        Sig::Winch,
        Sig::Tstp,
        Sig::Cont,
    ] {
        let actions = machine.step(Event::Signal(sig), at(1000));
        assert_eq!(actions, [Action::Forward(sig)]);
    }
    assert_eq!(machine.wake_at(), Some(at(4000)));
}

#[test]
fn a_job_that_takes_too_long() {
    let limit = Some(Duration::from_secs(1));
    let (mut machine, _) = begin(limit, 10);
    assert_eq!(machine.step(Event::Started, at(20)), []);
    assert_eq!(machine.wake_at(), Some(at(1020)));
    assert_eq!(
        machine.step(Event::Timer, at(1020)),
        [Action::Terminate(Scope::Tree)]
    );
    assert_eq!(
        machine.step(Event::JobEnded(Ended::Exited(0)), at(1100)),
        []
    );
    assert_eq!(machine.step(Event::JobGone, at(1100)), [FAILED]);
    let end = machine.step(released(Ok(Released::Released)), at(1101));
    assert_eq!(end, [Action::Finish(Outcome::Timeout(Ended::Exited(0)))]);
}

#[test]
fn a_suspended_job_goes_on_only_under_a_proven_lease() {
    let mut machine = running();
    assert_eq!(
        machine.step(Event::JobStopped(20), at(1000)),
        [Action::StopGroup(20)]
    );
    let actions = machine.step(Event::Signal(Sig::Cont), at(3000));
    assert_eq!(actions, [Action::Renew]);
    assert_eq!(
        deeds(machine.step(extended(3000), at(3001))),
        [Action::Resume]
    );

    let mut machine = running();
    assert_eq!(
        machine.step(Event::JobStopped(20), at(1000)),
        [Action::StopGroup(20)]
    );
    let actions = machine.step(Event::Signal(Sig::Cont), at(3000));
    assert_eq!(actions, [Action::Renew]);
    assert_eq!(deeds(machine.step(lost(3000), at(3001))), [TREE]);

    // An answer that was under way proves nothing about the time since.
    let mut machine = running();
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    let actions = machine.step(Event::JobStopped(20), at(4001));
    assert_eq!(actions, [Action::StopGroup(20)]);
    assert_eq!(machine.step(Event::Signal(Sig::Cont), at(8000)), []);
    let actions = deeds(machine.step(extended(4000), at(8001)));
    assert_eq!(actions, [Action::Renew]);
    let actions = deeds(machine.step(extended(8001), at(8002)));
    assert_eq!(actions, [Action::Resume]);

    // Longer than the lease: killed without another instruction.
    let mut machine = running();
    assert_eq!(
        machine.step(Event::JobStopped(20), at(1000)),
        [Action::StopGroup(20)]
    );
    let actions = deeds(machine.step(Event::Signal(Sig::Cont), at(60_000)));
    assert_eq!(actions, [Action::Renew, TREE]);
}

#[test]
fn the_guard_is_told_of_each_renewal() {
    let mut machine = running();
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    let actions = machine.step(extended(4000), at(4500));
    assert!(actions.contains(&Action::Extend(at(15_400))), "{actions:?}");
}

#[test]
fn a_guard_that_acted_first_means_that_the_lease_was_lost() {
    // dblock was stopped for a minute, and finds out all at once.
    let mut machine = running();
    let killed = Ended::Signaled(9);
    let actions = deeds(machine.step(Event::GuardExpired, at(60_000)));
    assert!(actions.contains(&TREE), "{actions:?}");
    assert_eq!(deeds(machine.step(Event::JobEnded(killed), at(60_000))), []);
    let actions = deeds(machine.step(Event::JobGone, at(60_000)));
    assert_eq!(actions, [FAILED], "its own row, if it is still there");
    let end = machine.step(released(Ok(Released::NotHeld)), at(60_001));
    let outcome = Outcome::Lost(Loss::Late(None), Some(killed));
    assert_eq!(end, [Action::Finish(outcome)]);
}

#[test]
fn a_job_that_ended_while_dblock_was_stopped_keeps_its_status() {
    let mut machine = running();
    let ended = Ended::Exited(0);
    // Heard of a minute later, when dblock goes on.
    assert_eq!(machine.step(Event::JobEnded(ended), at(60_000)), []);
    assert_eq!(deeds(machine.step(Event::JobGone, at(60_000))), [SUCCEEDED]);
    let end = machine.step(released(Ok(Released::Released)), at(60_001));
    assert_eq!(end, [Action::Finish(Outcome::Ended(ended))]);
}

#[test]
fn a_dead_guard_ends_the_job_and_frees_the_lock() {
    let mut machine = running();
    assert_eq!(deeds(machine.step(Event::GuardDied, at(100))), [TREE]);
    let killed = Ended::Signaled(9);
    assert_eq!(machine.step(Event::JobEnded(killed), at(110)), []);
    assert_eq!(machine.step(Event::JobGone, at(110)), [FAILED]);
    let end = machine.step(released(Ok(Released::Released)), at(111));
    let outcome = Outcome::Lost(Loss::GuardDied, Some(killed));
    assert_eq!(end, [Action::Finish(outcome)]);
}

#[test]
fn an_end_that_nobody_saw_is_no_success() {
    let mut machine = running();
    assert_eq!(machine.step(Event::JobGone, at(100)), [FAILED]);
    let end = machine.step(released(Ok(Released::Released)), at(101));
    assert_eq!(end, [Action::Finish(Outcome::Unseen)]);
}

#[test]
fn a_lease_that_is_still_ours_is_kept_for_those_who_cannot_be_killed() {
    let mut machine = running();
    assert_eq!(deeds(machine.step(Event::GuardDied, at(100))), [TREE]);
    for now in (150..60_000).step_by(50) {
        for action in machine.step(Event::Timer, at(now)) {
            assert!(!matches!(action, Action::Release(_) | Action::Finish(_)));
            if action == Action::Renew {
                assert_eq!(deeds(machine.step(extended(now), at(now))), []);
            }
        }
    }
}

#[test]
fn what_the_job_leaves_behind() {
    let ended = Event::JobEnded(Ended::Exited(3));
    let mut machine = running_with(Leftovers::Wait, false);
    assert_eq!(machine.step(ended, at(100)), []);
    assert_eq!(machine.step(Event::JobLeft, at(100)), []);
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    assert_eq!(deeds(machine.step(extended(4000), at(4001))), []);
    assert_eq!(machine.wake_at(), Some(at(5100)));
    let actions = machine.step(Event::Timer, at(5100));
    assert_eq!(actions, [Action::Name(Naming::Leftovers)]);
    assert_eq!(machine.step(Event::JobGone, at(6000)), [FAILED]);

    let mut machine = running_with(Leftovers::Kill, false);
    assert_eq!(machine.step(Event::JobEnded(Ended::Exited(3)), at(100)), []);
    let actions = machine.step(Event::JobLeft, at(100));
    assert_eq!(actions, [Action::Terminate(Scope::Group)]);
    assert_eq!(machine.wake_at(), Some(at(3100)));
    let actions = machine.step(Event::Timer, at(3100));
    assert_eq!(
        actions,
        [Action::Say(Note::Killing), Action::Kill(Scope::Group)]
    );
    assert_eq!(machine.step(Event::JobGone, at(3110)), [FAILED]);
    let end = machine.step(released(Ok(Released::Released)), at(3111));
    assert_eq!(end, [Action::Finish(Outcome::Ended(Ended::Exited(3)))]);

    let mut machine = running_with(Leftovers::Leave, false);
    assert_eq!(machine.step(Event::JobEnded(Ended::Exited(3)), at(100)), []);
    let actions = deeds(machine.step(Event::JobLeft, at(100)));
    assert_eq!(actions, [FAILED]);
    assert_eq!(
        machine.step(Event::JobGone, at(200)),
        [],
        "it does not matter any more"
    );
}

#[test]
fn the_keyboard_reaches_what_surrounds_dblock() {
    let interrupted = Ended::Signaled(Sig::Int.number());
    for (foreground, passed_on, expected) in [
        (true, false, true),
        (true, true, false),
        (false, false, false),
    ] {
        let mut machine = running_with(Leftovers::Wait, foreground);
        if passed_on {
            let actions = machine.step(Event::Signal(Sig::Int), at(50));
            assert_eq!(actions, [Action::Forward(Sig::Int)]);
        }
        assert_eq!(machine.step(Event::JobEnded(interrupted), at(100)), []);
        assert_eq!(machine.step(Event::JobGone, at(100)), [FAILED]);
        let end = machine.step(released(Ok(Released::Released)), at(101));
        let tells = end.contains(&Action::SignalGroup(Sig::Int.number()));
        assert_eq!(tells, expected, "{end:?}");
        assert_eq!(
            end.last(),
            Some(&Action::Finish(Outcome::Ended(interrupted)))
        );
    }
    // A stop that somebody sent to dblock alone stops dblock alone.
    let mut machine = running_with(Leftovers::Wait, true);
    let actions = machine.step(Event::Signal(Sig::Tstp), at(50));
    assert_eq!(actions, [Action::Forward(Sig::Tstp)]);
    let actions = machine.step(Event::JobStopped(20), at(51));
    assert_eq!(actions, [Action::StopSelf(20)]);
}

#[test]
fn who_cannot_be_killed_is_named_and_keeps_the_lock() {
    // After a stop signal: as long as it takes.
    let mut machine = running();
    let actions = machine.step(Event::Signal(Sig::Term), at(1000));
    assert_eq!(actions, [Action::Forward(Sig::Term)]);
    let mut named = 0;
    let mut sent = 0;
    for now in (4000..60_000).step_by(50) {
        for action in machine.step(Event::Timer, at(now)) {
            named += usize::from(action == Action::Name(Naming::Unkillable));
            assert!(!matches!(action, Action::Release(_) | Action::Finish(_)));
            if action == Action::Renew {
                sent = now;
            }
        }
        if sent == now {
            assert_eq!(deeds(machine.step(extended(now), at(now))), []);
        }
    }
    assert_eq!(named, 1);

    // After a loss there is no lock to keep: it ends, and deletes no row.
    let mut machine = running();
    assert_eq!(machine.step(Event::Timer, at(4000)), [Action::Renew]);
    let mut now = 8400;
    let end = loop {
        let actions = machine.step(Event::Timer, at(now));
        assert!(
            !actions
                .iter()
                .any(|action| matches!(action, Action::Release(_)))
        );
        if actions.iter().any(|a| matches!(a, Action::Finish(_))) {
            break actions;
        }
        now += 50;
        assert!(now < 20_000, "it does not end");
    };
    let outcome = Outcome::Lost(Loss::Late(None), None);
    assert_eq!(end.last(), Some(&Action::Finish(outcome)));
}

#[test]
fn the_job_may_believe_what_was_granted_from_the_question_on() {
    let held = |sent: u64| Standing::Held(at(sent + 12_000));
    let mut machine = running();
    assert_eq!(machine.standing(), held(0));
    // Sent at 4 s, answered at 5 s: the answer's time counts for nothing.
    drop(machine.step(Event::Timer, at(4000)));
    drop(machine.step(extended(4000), at(5000)));
    assert_eq!(machine.standing(), held(4000));
    drop(machine.step(failed(8000), at(8100)));
    assert_eq!(machine.standing(), held(4000));
    // A job that was asked to end holds its lease until it has.
    drop(machine.step(Event::Signal(Sig::Term), at(8200)));
    assert_eq!(machine.standing(), held(4000));
    drop(machine.step(Event::JobEnded(Ended::Signaled(15)), at(8300)));
    drop(machine.step(Event::JobGone, at(8300)));
    assert_eq!(machine.standing(), Standing::Over);
    drop(machine.step(released(Ok(Released::Released)), at(8400)));
    assert_eq!(machine.standing(), Standing::Over);
}

#[test]
fn the_job_learns_of_a_loss_before_it_is_asked_to_end() {
    for event in [
        lost(4000),
        Event::Answer(at(4000), Reply::Gone),
        Event::GuardExpired,
        Event::GuardDied,
    ] {
        let mut machine = running();
        drop(machine.step(event, at(4000)));
        assert_eq!(machine.standing(), Standing::Lost);
    }
    let mut machine = running();
    let actions = machine.step(Event::Timer, at(8400));
    assert!(
        actions.contains(&Action::Terminate(Scope::Tree)),
        "{actions:?}"
    );
    assert_eq!(machine.standing(), Standing::Lost);
    // A renewal that comes too late does not take it back.
    drop(machine.step(extended(8399), at(8500)));
    assert_eq!(machine.standing(), Standing::Lost);
    drop(machine.step(Event::JobEnded(Ended::Exited(0)), at(8600)));
    drop(machine.step(Event::JobGone, at(8600)));
    assert_eq!(machine.standing(), Standing::Lost);
}

fn events() -> impl Strategy<Value = Vec<(u8, u64)>> {
    proptest::collection::vec((0u8..18, 0u64..3000), 0..60)
}

proptest! {
    #[test]
    fn whatever_happens_in_whatever_order(script in events(), timeout in proptest::option::of(0u64..20_000)) {
        let timeout = timeout.map(Duration::from_millis);
        let (mut machine, first) = begin(timeout, 0);
        prop_assert_eq!(first, [Action::Start(at(11_400))]);
        let mut now = 0;
        let (mut ended, mut gone, mut finished, mut killed) = (false, false, false, false);
        let mut last_grant = 0;
        for (what, pause) in script {
            // The shell never sleeps past the moment that it was told.
            now = match machine.wake_at() {
                Some(wake) if wake < at(now + pause) => {
                    u64::try_from((wake - at(0)).as_millis()).expect("small").max(now)
                }
                _ => now + pause,
            };
            let event = match what {
                0 => Event::Signal(Sig::Term),
                1 => Event::Signal(Sig::Cont),
                2 => Event::Signal(Sig::Usr1),
                3 => { last_grant = last_grant.max(now.saturating_sub(500)); extended(now.saturating_sub(500)) }
                4 => failed(now),
                5 => lost(now),
                6 => released(Ok(Released::Released)),
                7 => released(Ok(Released::NotHeld)),
                8 => released(Err(unavailable())),
                9 => Event::JobStopped(20),
                10 if !ended => { ended = true; Event::JobEnded(Ended::Exited(1)) }
                11 if ended && !gone => { gone = true; Event::JobGone }
                12 => Event::Answer(at(now), Reply::Gone),
                13 => Event::GuardExpired,
                14 => Event::GuardDied,
                15 if ended => Event::JobLeft,
                _ => Event::Timer,
            };
            for action in machine.step(event, at(now)) {
                prop_assert!(!finished, "{:?} after the end", action);
                match action {
                    Action::Release(_) => prop_assert!(gone),
                    Action::Forward(_)
                    | Action::Terminate(_)
                    | Action::Kill(_)
                    | Action::Resume
                    | Action::Extend(_) => {
                        prop_assert!(!gone, "{:?} after the job is gone", action);
                        killed |= matches!(action, Action::Kill(_));
                    }
                    Action::Finish(outcome) => {
                        // Only a job that cannot be killed is left behind.
                        let left = matches!(outcome, Outcome::Lost(_, None)) && killed;
                        prop_assert!(gone || left, "{:?}", outcome);
                        finished = true;
                    }
                    Action::Start(_) => prop_assert!(false, "a second start"),
                    _ => {}
                }
            }
            match machine.standing() {
                Standing::Held(until) => {
                    prop_assert!(!gone && !finished);
                    prop_assert_eq!(until, line().expires_at(at(last_grant)));
                }
                Standing::Lost => prop_assert!(!finished),
                Standing::Over => prop_assert!(gone || finished),
            }
            // By S + ttl - margin the job is gone or was killed. After the
            // report of an end the rest of the report comes first.
            if what != 10 && at(now) >= line().kill_at(at(last_grant)) && !gone && !finished {
                prop_assert!(killed);
            }
        }
    }
}
