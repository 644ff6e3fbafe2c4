//! The way to a grant, for `run` and `acquire`: the hands of
//! [`crate::acquisition`].

use std::io;
use std::time::Duration;

use anyhow::Error;

use crate::acquisition::{Acquisition, Patience, Refusal, Wanted, Won};
use crate::cli::LockArgs;
use crate::client::{self, Surroundings};
use crate::clock::{self, Tick};
use crate::config::ConfigError;
use crate::inbox::{Inbox, Incoming};
use crate::keeper::Keeper;
use crate::lock::{Claimant, Holder, Key, Kind, Terms, slot_of};
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
    let mut command = Command {
        key: wanted.key.clone(),
        console,
        tell_at: None,
    };
    client::obtain(wanted, inbox, keeper, &mut command)
}

/// A command that waits: its signals end it, and people are told.
struct Command {
    key: Key,
    console: Console,
    /// When people are to be told again, once they were.
    tell_at: Option<Tick>,
}

impl Surroundings for Command {
    fn ends(&mut self, incoming: &Incoming) -> Option<Sig> {
        match incoming {
            Incoming::Signal(Sig::Tstp) => {
                signals::stop_self(Sig::Tstp.number());
                None
            }
            Incoming::Signal(sig) if sig.ends_by_default() => Some(*sig),
            _ => None,
        }
    }

    fn show(&mut self, machine: &Acquisition) -> Option<Tick> {
        let now = clock::now();
        if !machine.holders().is_empty() && self.tell_at.is_none_or(|moment| now >= moment) {
            let line = Waiting {
                key: &self.key,
                holders: machine.holders(),
                place: machine.place(),
            };
            // At first only to those who want to know all; after a while to
            // everybody who has not asked for silence.
            match self.tell_at {
                None => self.console.tell(&line),
                Some(_) => self.console.busy(&line),
            }
            self.tell_at = Some(now + TELL_AGAIN);
        }
        self.tell_at
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
