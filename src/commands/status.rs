//! `dblock status`: who holds which locks. It only reads.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, Error};

use crate::cli::StatusArgs;
use crate::exit::{Exit, Status};
use crate::lock::{Holder, Key, State, Waiter};
use crate::output::{self, StatusRow};
use crate::signals::Interrupt;
use crate::store::{Store, StoreError};

/// Time between two looks of `--watch`.
const EVERY: Duration = Duration::from_secs(1);
/// Clears the screen and puts the cursor to its top (ECMA-48, ED and CUP).
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(super) fn status(args: &StatusArgs) -> Result<Exit, Error> {
    let mut keys: Vec<Key> = args.keys.iter().chain(&args.more_keys).cloned().collect();
    keys.sort();
    keys.dedup();
    let (mut store, limit) = super::open(&args.store)?;
    if args.watch {
        return watch(&mut *store, &keys);
    }
    let (rows, waiters) = super::patiently(limit, |_| look(&mut *store, &keys))?;
    let text = if args.json {
        let rows = rows.iter().map(|row| StatusRow::new(row, &waiters));
        output::json(&rows.collect::<Vec<_>>())?
    } else {
        output::status_table(&rows, &free(&keys, &rows), &waiters)
    };
    output::print(&text)?;
    let all_held = keys.iter().all(|key| is_held(key, &rows));
    Ok(if all_held {
        Exit::SUCCESS
    } else {
        Status::NotHeld.into()
    })
}

/// Shows the table anew every second. An error is shown in its place, because
/// somebody who watches wants to see the database come back.
fn watch(store: &mut dyn Store, keys: &[Key]) -> Result<Exit, Error> {
    let interrupt = Interrupt::install().context("cannot install a signal handler")?;
    loop {
        let shown = match look(store, keys) {
            Ok((rows, waiters)) => output::status_table(&rows, &free(keys, &rows), &waiters),
            Err(error) => format!("{error}\n"),
        };
        match output::deliver(&format!("{CLEAR}{shown}")) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Exit::SUCCESS),
            Err(error) => return Err(error.into()),
        }
        if interrupt.wait(EVERY) {
            return Ok(Exit::SUCCESS);
        }
    }
}

fn look(store: &mut dyn Store, keys: &[Key]) -> Result<(Vec<Holder>, Vec<Waiter>), StoreError> {
    let mut rows = Vec::new();
    let mut waiters = Vec::new();
    let keys = match keys {
        [] => vec![None],
        keys => keys.iter().map(Some).collect(),
    };
    for key in keys {
        rows.extend(store.holders(key)?);
        waiters.extend(match store.waiters(key) {
            // An account that may not see the waiters sees the locks.
            Err(StoreError::Denied(_) | StoreError::Schema(_)) => Vec::new(),
            answer => answer?,
        });
    }
    Ok((rows, waiters))
}

fn is_held(key: &Key, rows: &[Holder]) -> bool {
    rows.iter()
        .any(|row| row.grant.key == *key && row.state == State::Held)
}

fn free(keys: &[Key], rows: &[Holder]) -> Vec<Key> {
    keys.iter()
        .filter(|key| !rows.iter().any(|row| row.grant.key == **key))
        .cloned()
        .collect()
}
