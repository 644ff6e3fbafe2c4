//! `dblock force-release`: takes a lock away from its holder.

use anyhow::Error;

use crate::cli::ForceReleaseArgs;
use crate::config::ConfigError;
use crate::exit::{Exit, Status};
use crate::lock::{Holder, Kind, State};
use crate::output::{self, Who, rough};
use crate::store::{End, Released};

pub(super) fn force_release(args: &ForceReleaseArgs) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let Some(key) = args.key.get() else {
        return Err(ConfigError::Usage("a key is needed".to_owned()).into());
    };
    if !args.yes && !output::can_ask() {
        let why = "there is no terminal to ask on: give --yes";
        return Err(ConfigError::Usage(why.to_owned()).into());
    }
    let (mut store, limit) = super::open(&args.store)?;
    let rows: Vec<Holder> = super::patiently(limit, |_| store.holders(Some(key)))?
        .into_iter()
        // A block is no lease: 'dblock unblock' ends it.
        .filter(|row| row.state != State::Blocked)
        .filter(|row| args.slot.is_none_or(|slot| row.grant.slot == slot))
        .filter(|row| {
            args.owner
                .as_ref()
                .is_none_or(|owner| row.grant.owner == *owner)
        })
        .collect();
    if rows.is_empty() {
        let whose = match (&args.owner, args.slot) {
            (Some(_), _) => "not held by that owner".to_owned(),
            (None, Some(slot)) => format!("free in slot {slot}"),
            (None, None) => "free".to_owned(),
        };
        console.say(&format_args!("\"{key}\" is {whose}: nothing to release"));
        return Ok(Status::NotHeld.into());
    }
    if !args.yes {
        let question = format!(
            "{}Release \"{key}\"? Type yes to do it: ",
            rows.iter()
                .map(|row| describe(row) + "\n")
                .collect::<String>()
        );
        let answer = output::ask(&question)?.to_lowercase();
        if !["y", "yes"].contains(&answer.as_str()) {
            console.say(&"nothing was released, because the answer was not yes");
            return Ok(Status::Usage.into());
        }
    }
    let mut removed = String::new();
    for row in &rows {
        // The grant is checked again by the statement itself, so a holder who
        // came after the question cannot be hit.
        match super::give_back(&mut *store, &row.grant, End::Dropped, limit)? {
            Released::Released => {
                removed += &format!("released: {}\n", describe(row));
                if args.yes {
                    console.warn(&danger(row));
                }
            }
            Released::NotHeld => console.say(&format_args!(
                "{} has gone by itself in the meantime",
                Who(row)
            )),
        }
    }
    // What was done is done, whether anybody reads of it or not.
    if let Err(error) = output::print(&removed) {
        console.say(&format_args!(
            "warning: cannot write what was released: {error}"
        ));
    }
    Ok(if removed.is_empty() {
        Status::NotHeld.into()
    } else {
        Exit::SUCCESS
    })
}

/// Returns a line that says what else may happen, if anything.
fn danger(row: &Holder) -> String {
    if row.state != State::Held || row.kind != Kind::Run {
        return String::new();
    }
    format!(
        "warning: the job on {} may run on for up to {}, until its dblock notices\n",
        row.claimant.host,
        rough(row.ttl)
    )
}

fn describe(row: &Holder) -> String {
    let left = match row.state {
        State::Held => format!("{} left", rough(row.remaining)),
        State::Expired => "expired".to_owned(),
        State::Closing | State::Done | State::Blocked => {
            format!("ended, closed for another {}", rough(row.remaining))
        }
    };
    let what = match row.claimant.command.as_str() {
        "" => String::new(),
        command => format!(", running {command}"),
    };
    let note = row.claimant.note.as_ref();
    format!(
        "\"{}\" is held by {} for {}, {left}{what}{}, owner {}, token {}",
        row.grant.key,
        Who(row),
        rough(row.held),
        note.map_or(String::new(), |note| format!(" ({note})")),
        row.grant.owner,
        row.grant.token
    )
}
