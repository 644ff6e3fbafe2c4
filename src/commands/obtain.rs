//! The way to a grant, for `run` and `acquire`: the hands of
//! [`crate::acquisition`].

use std::io;
use std::time::Duration;

use anyhow::Error;

use crate::acquisition::{Acquisition, Patience, Refusal, Step, Wanted, Won};
use crate::cli::LockArgs;
use crate::clock;
use crate::config::ConfigError;
use crate::inbox::{Inbox, Incoming};
use crate::keeper::{Call, Keeper};
use crate::lock::{Claimant, Holder, Kind, Terms, slot_of};
use crate::output::{Console, Waiting, Who};
use crate::signals::{self, Sig};

/// How long dblock waits for the keeper to say goodbye to the server.
const GOODBYE: Duration = Duration::from_millis(200);
/// How often people are told what is waited for.
const TELL_AGAIN: Duration = Duration::from_secs(30);

/// Returns what the arguments ask for.
pub(super) fn wanted(args: &LockArgs, kind: Kind, claimant: Claimant, contact: Duration) -> Wanted {
    Wanted {
        key: args.key.clone(),
        ttl: args.ttl,
        terms: Terms {
            slots: args.slots,
            at_least: args.at_least,
            once_per: args.once_per,
            lock_delay: args.lock_delay,
        },
        slot: asked_slot(args),
        kind,
        claimant,
        patience: match args.wait {
            None => Patience::None,
            Some(None) => Patience::Forever,
            Some(Some(length)) => Patience::For(length),
        },
        contact,
    }
}

/// Returns the one slot that is asked for, if not any will do.
pub(super) fn asked_slot(args: &LockArgs) -> Option<u16> {
    let value = args.slot_by.as_ref()?;
    Some(slot_of(value, args.slots))
}

/// Takes the lock, or returns why not.
pub(super) fn obtain(
    wanted: Wanted,
    inbox: &mut Inbox,
    keeper: &mut Keeper,
    console: Console,
) -> io::Result<Result<Won, Refusal>> {
    let key = wanted.key.clone();
    let (mut machine, mut step) = Acquisition::begin(wanted, fastrand::Rng::new(), clock::now());
    let mut tell_at = None;
    loop {
        match step {
            Step::Ask(call) => keeper.ask(call),
            Step::Cancel => keeper.cancel(),
            Step::Wait => {}
            Step::Won(mut won) => {
                // The job's start does not wait for it.
                if let Some(waiter) = won.waiter.take() {
                    keeper.ask(Call::Forget(key, vec![waiter]));
                }
                return Ok(Ok(won));
            }
            Step::End(refusal) => return Ok(Err(refusal)),
        }
        let now = clock::now();
        if !machine.holders().is_empty() && tell_at.is_none_or(|moment| now >= moment) {
            let line = Waiting {
                key: &key,
                holders: machine.holders(),
                place: machine.place(),
            };
            // At first only to those who want to know all; after a while to
            // everybody who has not asked for silence.
            match tell_at {
                None => console.tell(&line),
                Some(_) => console.busy(&line),
            }
            tell_at = Some(now + TELL_AGAIN);
        }
        step = Step::Wait;
        let until = machine.wake_at().into_iter().chain(tell_at).min();
        for incoming in inbox.wait(until, None)? {
            let next = match incoming {
                Incoming::Signal(sig @ Sig::Tstp) => {
                    signals::stop_self(sig.number());
                    Step::Wait
                }
                Incoming::Signal(sig) if sig.ends_by_default() => machine.signal(sig, clock::now()),
                Incoming::Signal(_) | Incoming::Guard => Step::Wait,
                Incoming::Answer(answer) => machine.answer(answer.sent, answer.reply, clock::now()),
                Incoming::Timer => machine.timer(clock::now()),
            };
            // At most one event of a batch has a consequence: there is one
            // call under way, and an end is an end.
            if !matches!(next, Step::Wait) {
                step = next;
            }
            if matches!(step, Step::End(_) | Step::Won(_)) {
                break;
            }
        }
    }
}

/// Returns the error for a key that others use with another number of slots.
pub(super) fn slots_differ(args: &LockArgs, holders: &[Holder]) -> Error {
    let (key, slots) = (&args.key, args.slots);
    let other = holders.iter().find(|row| row.slots != slots);
    let text = match other {
        Some(row) => format!(
            "\"{key}\" is used with --slots {} by {}, and --slots {slots} was asked for: all who \
             use a key must say the same",
            row.slots,
            Who(row)
        ),
        None => format!("\"{key}\" is used with another number of slots than {slots}"),
    };
    ConfigError::Config(text).into()
}

/// Lets the keeper finish what it was given and say goodbye to the server, for
/// a moment.
pub(super) fn dismiss(keeper: Keeper, inbox: &mut Inbox) {
    drop(keeper);
    let limit = clock::now() + GOODBYE;
    while clock::now() < limit {
        let Ok(happened) = inbox.wait(Some(limit), None) else {
            return;
        };
        let gone = happened.iter().any(|incoming| {
            matches!(incoming, Incoming::Answer(answer)
                if matches!(answer.reply, crate::keeper::Reply::Gone))
        });
        if gone {
            return;
        }
    }
}
