//! Calls to a store on the caller's own thread, for those who hold a lease by
//! hand and for operators: repeated within a limit, because a call whose
//! outcome is unknown is no answer.

use std::time::Duration;

use crate::clock;
use crate::lock::{Grant, State};
use crate::store::{End, Released, Store, StoreError};

/// Makes a call that may be repeated until it is answered, within the limit
/// for a connection. `call` is told whether an earlier attempt may have been
/// carried out.
///
/// # Errors
///
/// Returns the error of the last attempt.
pub fn patiently<T>(
    limit: Duration,
    mut call: impl FnMut(bool) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let give_up = clock::now() + limit;
    let mut doubtful = false;
    loop {
        match call(doubtful) {
            // A connection that cannot be made is not tried again: whoever
            // calls by hand sees it sooner.
            Err(error @ (StoreError::Transient(_) | StoreError::Unavailable(_)))
                if clock::now() < give_up =>
            {
                doubtful |= error.outcome_unknown();
                let pause = Duration::from_millis(fastrand::u64(20..100));
                std::thread::park_timeout(pause);
            }
            other => return other,
        }
    }
}

/// Gives a lease back. A row that is gone after an attempt of unknown outcome
/// was given back by that one.
///
/// # Errors
///
/// Returns the error of the last attempt.
pub fn give_back(
    store: &mut dyn Store,
    grant: &Grant,
    end: End,
    limit: Duration,
) -> Result<Released, StoreError> {
    patiently(limit, |doubtful| {
        let released = store.release(grant, end)?;
        Ok(if doubtful {
            Released::Released
        } else {
            released
        })
    })
}

/// Gives back a lease whose work is done. One that had expired, though nobody
/// has taken it over, is removed too, but was not held.
///
/// # Errors
///
/// Returns the error of the last attempt.
pub fn release(
    store: &mut dyn Store,
    grant: &Grant,
    limit: Duration,
) -> Result<Released, StoreError> {
    let rows = patiently(limit, |_| store.holders(Some(&grant.key)))?;
    let Some(row) = rows.iter().find(|row| row.grant.owner == grant.owner) else {
        return Ok(Released::NotHeld);
    };
    let was_held = row.state == State::Held;
    let released = give_back(store, grant, End::Finished { succeeded: true }, limit)?;
    Ok(if was_held {
        released
    } else {
        Released::NotHeld
    })
}
