//! `dblock block` and `unblock`: keep a key shut for maintenance.

use anyhow::Error;

use crate::cli::{BlockArgs, KeyArgs, UnblockArgs};
use crate::config::{self, ConfigError};
use crate::exit::{Exit, Status};
use crate::lock::Key;

pub(super) fn block(args: &BlockArgs) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let key = key(&args.key)?;
    let claimant = config::claimant(&[], args.reason.clone());
    let (mut store, limit) = super::open(&args.store)?;
    super::patiently(limit, |_| store.block(key, args.length, &claimant))?;
    console.tell(&format_args!("\"{key}\" is blocked"));
    Ok(Exit::SUCCESS)
}

pub(super) fn unblock(args: &UnblockArgs) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let key = key(&args.key)?;
    let (mut store, limit) = super::open(&args.store)?;
    let was_blocked = super::patiently(limit, |doubtful| {
        // After an attempt of unknown outcome it may be gone by that.
        store
            .unblock(key)
            .map(|was_blocked| was_blocked || doubtful)
    })?;
    if !was_blocked {
        console.say(&format_args!("\"{key}\" was not blocked"));
        return Ok(Status::NotHeld.into());
    }
    console.tell(&format_args!("\"{key}\" is not blocked any more"));
    Ok(Exit::SUCCESS)
}

fn key(args: &KeyArgs) -> Result<&Key, Error> {
    let missing = || ConfigError::Usage("a key is needed".to_owned());
    Ok(args.get().ok_or_else(missing)?)
}
