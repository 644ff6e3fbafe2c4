//! `dblock check`: inside a job it reads what the dblock above lets it know,
//! and otherwise asks the store.

use std::time::Duration;

use anyhow::Error;

use super::lease::{Found, find, not_held};
use crate::cli::CheckArgs;
use crate::config::{self, ConfigError};
use crate::exit::Exit;
use crate::lease_file::{Ended, Reading};
use crate::lock::{Grant, Key, Owner};
use crate::output::{self, rough};
use crate::store;

pub(super) fn check(args: &CheckArgs) -> Result<Exit, Error> {
    if let (Some(key), Some(owner)) = (&args.key, &args.owner) {
        return ask(args, key, owner);
    }
    let (key, owner) = config::surrounding_lease()?;
    if args.store.url.is_some() || args.store.local {
        return ask(args, &key, &owner);
    }
    let outers = config::outer_leases()?;
    let outer = outers.iter().find(|outer| outer.owner == owner);
    let why = match outer.and_then(|outer| outer.place.as_ref()) {
        Some(place) => match place.read(&owner) {
            Reading::Held(record, left) => {
                return held(args, &record.grant, left, record.table.as_deref());
            }
            Reading::Not(ended) => {
                let why = over(&key, ended);
                return Ok(not_held(super::console(&args.store), &why));
            }
            Reading::Unreadable(why) => why,
        },
        None => "DBLOCK_HELD does not say where it is".to_owned(),
    };
    let why = format!("cannot read what the dblock above lets its job know of \"{key}\": {why}");
    if config::settings_if_any(&args.store)?.is_none() {
        let text = format!("{why}; and no store is configured that could be asked instead");
        return Err(ConfigError::Config(text).into());
    }
    super::console(&args.store).tell(&format_args!("{why}; asking the store"));
    ask(args, &key, &owner)
}

fn ask(args: &CheckArgs, key: &Key, owner: &Owner) -> Result<Exit, Error> {
    let settings = config::settings(&args.store)?;
    let limit = settings.connect_timeout;
    let limits = store::Limits::for_command(limit);
    let mut store = settings.endpoint.open(limits);
    match find(&mut *store, limit, key, owner)? {
        Found::Held(row) => {
            let table = settings.endpoint.table();
            held(args, &row.grant, row.remaining, table.as_deref())
        }
        Found::Not(why) => Ok(not_held(super::console(&args.store), &why)),
    }
}

/// Answers for a lease that is held for this long at least.
fn held(
    args: &CheckArgs,
    grant: &Grant,
    left: Duration,
    table: Option<&str>,
) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let key = &grant.key;
    if args.min_left.is_some_and(|least| left < least) {
        let why = format!("\"{key}\" has only {} left", rough(left));
        return Ok(not_held(console, &why));
    }
    if args.print_sql {
        let sql = table.and_then(|table| store::fence(table, grant));
        let sql = sql.ok_or_else(|| {
            let text = "--print-sql needs a lock in MySQL or MariaDB: \
                        no transaction of the job's own reaches the embedded store";
            ConfigError::Config(text.to_owned())
        })?;
        output::print(&format!("{sql};\n"))?;
    }
    console.tell(&format_args!("\"{key}\" is held, {} left", rough(left)));
    Ok(Exit::SUCCESS)
}

/// Tells the ends of a lease apart.
fn over(key: &Key, ended: Ended) -> String {
    match ended {
        Ended::Gone => format!("\"{key}\" is not held: the dblock that held it is gone"),
        Ended::Expired => format!("\"{key}\" has expired: its dblock has not renewed it in time"),
        Ended::Lost => format!("\"{key}\" was lost, and its job is being stopped"),
        Ended::Over => format!("\"{key}\" has been given back: the run is over"),
    }
}
