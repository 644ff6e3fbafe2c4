//! Leases that a script holds by hand: `acquire`, `renew`, `release`.

use std::time::Duration;

use anyhow::{Context, Error};

use super::obtain::{dismiss, obtain, slots_differ, wanted};
use crate::acquisition::Refusal;
use crate::cli::{AcquireArgs, ReleaseArgs, RenewArgs, WakeArg};
use crate::clock;
use crate::config;
use crate::exit::{Exit, Status};
use crate::inbox::{Inbox, Incoming};
use crate::keeper::{Call, Keeper, Reply};
use crate::lock::{Grant, Holder, Key, Kind, Owner, State, Ttl, to_millis};
use crate::output::{self, AcquiredReport, Console, HeldBy, rough};
use crate::signals::Relay;
use crate::store::{End, Limits, Released, Renewed, Revive, Store};

/// A script that gives its lease back has done what it took it for.
const FINISHED: End = End::Finished { succeeded: true };

/// Takes a lock and prints its owner id. If the id cannot be written, nobody
/// could ever release the lock, so the lease is given back.
pub(super) fn acquire(args: &AcquireArgs) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let settings = config::settings(&args.store)?;
    let claimant = config::claimant(&[], args.lock.note.clone());
    // From here on no signal is lost.
    let relay = Relay::install().context("cannot install signal handlers")?;
    let mut inbox = Inbox::new(relay).context("cannot wait for events")?;
    let store = settings.endpoint.open(Limits {
        idle: args.lock.ttl.get(),
        queue: args.lock.wake == WakeArg::Auto,
        ..Limits::for_command(settings.connect_timeout)
    });
    let mut keeper = Keeper::start(store, inbox.postbox()).context("cannot start a thread")?;
    let key = &args.lock.key;
    let wanted = wanted(
        &args.lock,
        Kind::Acquire,
        claimant,
        settings.connect_timeout,
    );
    let won = match obtain(wanted, &mut inbox, &mut keeper, console)? {
        Ok(won) => won,
        Err(refusal) => {
            dismiss(keeper, &mut inbox);
            return match refusal {
                Refusal::Busy(holders) => {
                    console.busy(&HeldBy {
                        key,
                        holders: &holders,
                    });
                    Ok(Exit::Code(args.lock.busy_exit))
                }
                Refusal::SlotsDiffer(holders) => Err(slots_differ(&args.lock, &holders)),
                Refusal::Interrupted(sig) => Ok(Exit::Signal(sig.number())),
                Refusal::Failed(error) => Err(error.into()),
                Refusal::KeeperDied => Ok(Status::Internal.into()),
            };
        }
    };
    if !won.former.is_empty() {
        keeper.ask(Call::Forget(key.clone(), won.former));
    }
    let grant = won.grant;
    let text = if args.json {
        output::json(&AcquiredReport {
            key,
            slot: grant.slot,
            owner: &grant.owner,
            token: grant.token,
            ttl_ms: args.lock.ttl.as_millis(),
            remaining_ms: to_millis(args.lock.ttl.get().saturating_sub(clock::now() - won.sent)),
        })?
    } else {
        format!("{}\n", grant.owner)
    };
    let ttl = args.lock.ttl.get();
    // Whoever gets the id must have time to use it.
    let usable = if clock::now() - won.sent < ttl / 2 {
        output::deliver(&text).map_err(|error| {
            (
                Status::Internal,
                format!("the owner id cannot be written: {error}"),
            )
        })
    } else {
        let why = "the database took too long to answer for this TTL".to_owned();
        Err((Status::Unavailable, why))
    };
    let Err((status, why)) = usable else {
        dismiss(keeper, &mut inbox);
        console.tell(&format_args!(
            "\"{key}\" granted with token {}",
            grant.token
        ));
        return Ok(Exit::SUCCESS);
    };
    if give_back(&grant, &keeper, &mut inbox, settings.connect_timeout) {
        console.say(&format_args!("{why}; \"{key}\" was given back"));
    } else {
        let left = ttl.saturating_sub(clock::now() - won.sent);
        console.say(&format_args!(
            "{why}; \"{key}\" could not be given back and expires in {}, owner {}",
            rough(left),
            grant.owner
        ));
    }
    dismiss(keeper, &mut inbox);
    Ok(status.into())
}

/// Gives the lease back through the keeper, and tells whether it worked.
fn give_back(grant: &Grant, keeper: &Keeper, inbox: &mut Inbox, limit: Duration) -> bool {
    keeper.ask(Call::Release(grant.clone(), End::Dropped));
    let limit = clock::now() + limit;
    while clock::now() < limit {
        let Ok(happened) = inbox.wait(Some(limit), None) else {
            return false;
        };
        for incoming in happened {
            match incoming {
                Incoming::Answer(answer) => match answer.reply {
                    // A row that is gone was given back by an earlier attempt.
                    Reply::Released(Ok(_)) => return true,
                    Reply::Released(Err(error)) if error.may_pass() => {
                        std::thread::park_timeout(Duration::from_millis(50));
                        keeper.ask(Call::Release(grant.clone(), End::Dropped));
                    }
                    Reply::Released(Err(_)) | Reply::Gone => return false,
                    _ => {}
                },
                Incoming::Signal(_) | Incoming::Guard | Incoming::Timer => {}
            }
        }
    }
    false
}

pub(super) fn renew(args: &RenewArgs) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let (key, owner) = (&args.lease.key, &args.lease.owner);
    let (mut store, limit) = super::open(&args.store)?;
    let held = match find(&mut *store, limit, key, owner)? {
        Found::Held(held) => held,
        Found::Not(why) => return Ok(not_held(console, &why)),
    };
    // A row from before an update of dblock may hold any number.
    let ttl = match args.ttl {
        Some(ttl) => ttl,
        None => Ttl::new(held.ttl).context("the lease's present TTL cannot be kept")?,
    };
    let renewed = super::patiently(limit, |_| store.renew(&held.grant, ttl, Revive::Refused))?;
    match renewed {
        Renewed::Extended => {
            console.tell(&format_args!("\"{key}\" renewed for {ttl}"));
            Ok(Exit::SUCCESS)
        }
        Renewed::Lost(rows) => Ok(not_held(console, &why_not(key, owner, &rows))),
    }
}

pub(super) fn release(args: &ReleaseArgs) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let (key, owner) = (&args.lease.key, &args.lease.owner);
    let (mut store, limit) = super::open(&args.store)?;
    let rows = super::patiently(limit, |_| store.holders(Some(key)))?;
    // An expired lease that nobody has taken is still there to be given back,
    // but the caller must learn that it was not protected to the end.
    let Some(row) = rows.iter().find(|row| row.grant.owner == *owner) else {
        return Ok(not_held(console, &why_not(key, owner, &rows)));
    };
    match super::give_back(&mut *store, &row.grant, FINISHED, limit)? {
        Released::Released if row.state == State::Expired => {
            Ok(not_held(console, &why_not(key, owner, &rows)))
        }
        Released::Released => Ok(Exit::SUCCESS),
        Released::NotHeld => {
            let rows = super::patiently(limit, |_| store.holders(Some(key)))?;
            Ok(not_held(console, &why_not(key, owner, &rows)))
        }
    }
}

/// What the store says of a lease.
pub(super) enum Found {
    Held(Box<Holder>),
    Not(String),
}

/// Asks the store for a lease.
pub(super) fn find(
    store: &mut dyn Store,
    limit: Duration,
    key: &Key,
    owner: &Owner,
) -> Result<Found, Error> {
    let rows = super::patiently(limit, |_| store.holders(Some(key)))?;
    let own = |row: &&Holder| row.grant.owner == *owner && row.state == State::Held;
    Ok(match rows.iter().find(own) {
        Some(row) => Found::Held(Box::new(row.clone())),
        None => Found::Not(why_not(key, owner, &rows)),
    })
}

/// Tells free, expired and held by another apart.
fn why_not(key: &Key, owner: &Owner, rows: &[Holder]) -> String {
    if rows.iter().any(|row| row.grant.owner == *owner) {
        return format!("\"{key}\" has expired: that lease is over");
    }
    let held: Vec<Holder> = rows
        .iter()
        .filter(|row| row.state == State::Held)
        .cloned()
        .collect();
    if held.is_empty() {
        return format!("\"{key}\" is free: nobody holds it");
    }
    format!(
        "not held by that owner: {}",
        HeldBy {
            key,
            holders: &held
        }
    )
}

/// Says why a lease is not held.
pub(super) fn not_held(console: Console, why: &str) -> Exit {
    console.say(&why);
    Status::NotHeld.into()
}
