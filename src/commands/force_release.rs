//! `dblock force-release`: takes a lock away from its holder.

use anyhow::Error;

use crate::cli::ForceReleaseArgs;
use crate::config::ConfigError;
use crate::exit::{Exit, Status};
use crate::lock::{Holder, Kind, State};
use crate::output::{self, Who, rough};
use crate::store::Released;

pub(super) fn force_release(args: &ForceReleaseArgs) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let Some(key) = args.key.as_ref().or(args.key_option.as_ref()) else {
        return Err(ConfigError::Usage("a key is needed".to_owned()).into());
    };
    let mut store = super::open(&args.store)?;
    let rows: Vec<Holder> = store
        .holders(Some(key))?
        .into_iter()
        .filter(|row| args.slot.is_none_or(|slot| row.grant.slot == slot))
        .filter(|row| {
            args.owner
                .as_ref()
                .is_none_or(|owner| row.grant.owner == *owner)
        })
        .collect();
    if rows.is_empty() {
        let whose = match args.owner {
            Some(_) => "not held by that owner",
            None => "free",
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
        match output::ask(&question) {
            Some(answer) if answer == "yes" => {}
            Some(_) => {
                console.say(&"nothing was released");
                return Ok(Status::Usage.into());
            }
            None => {
                let why = "there is no terminal to ask on: give --yes";
                return Err(ConfigError::Usage(why.to_owned()).into());
            }
        }
    }
    let mut removed = 0;
    for row in &rows {
        // The grant is checked again by the statement itself, so a holder who
        // came after the question cannot be hit.
        match store.release(&row.grant)? {
            Released::Released => {
                removed += 1;
                output::print(&format!("released: {}\n", describe(row)))?;
                if row.state == State::Held && row.kind == Kind::Run {
                    console.say(&format_args!(
                        "warning: the job on {} may run on for up to {}, until its dblock notices",
                        row.claimant.host,
                        rough(row.ttl)
                    ));
                }
            }
            Released::NotHeld => console.say(&format_args!(
                "{} has gone by itself in the meantime",
                Who(row)
            )),
        }
    }
    Ok(if removed == 0 {
        Status::NotHeld.into()
    } else {
        Exit::SUCCESS
    })
}

fn describe(row: &Holder) -> String {
    let left = match row.state {
        State::Held => format!("{} left", rough(row.remaining)),
        State::Expired => "expired".to_owned(),
    };
    format!(
        "\"{}\" held by {} for {}, {left}, owner {}, token {}",
        row.grant.key,
        Who(row),
        rough(row.held),
        row.grant.owner,
        row.grant.token
    )
}
