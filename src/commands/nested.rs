//! A run of a key that the job around it may hold: looks, and then refuses or
//! runs the command under that lease.

use std::time::Duration;

use anyhow::{Context, Error};
use nix::sys::signal::SigSet;

use super::run::{Refused, job_spec, report_refusal};
use crate::child;
use crate::cli::RunArgs;
use crate::config::{ConfigError, Settings};
use crate::exit::{Exit, Status};
use crate::lease_file::{Place, Record};
use crate::lock::{Holder, to_millis};
use crate::nesting::{Candidate, surrounding};
use crate::signals::Inherited;
use crate::store::Limits;
use crate::supervise::Unstarted;

/// What becomes of a run.
pub(super) enum Nested<'a> {
    /// No job around it holds the key.
    Apart,
    /// A job around it does, and it ends with this.
    Refused(Exit),
    /// The command is to run under this lease.
    Under(&'a Record, &'a Place),
}

/// Asks the store whether a candidate holds the key.
pub(super) fn look<'a>(
    args: &RunArgs,
    settings: &Settings,
    slot: Option<u16>,
    candidates: &'a [Candidate],
) -> Result<Nested<'a>, Error> {
    if candidates.is_empty() {
        return Ok(Nested::Apart);
    }
    let limit = settings.connect_timeout;
    let mut store = settings.endpoint.open(Limits::for_command(limit));
    let rows = super::patiently(limit, |_| store.holders(Some(&args.lock.key)));
    let rows = rows.inspect_err(|error| {
        report_refusal(
            args,
            &Refused {
                word: "error",
                exit: Exit::of_store(error),
                reason: Some(error.to_string()),
                holder: None,
                waited: Duration::ZERO,
            },
        );
    })?;
    match surrounding(candidates, slot, &rows) {
        Some((candidate, row)) => decide(args, candidate, Some(row), row.slots),
        None => Ok(Nested::Apart),
    }
}

/// Decides without a store, where none is configured: then no other one can be
/// meant.
pub(super) fn look_around<'a>(
    args: &RunArgs,
    slot: Option<u16>,
    candidates: &'a [Candidate],
) -> Result<Nested<'a>, Error> {
    for candidate in candidates {
        if let Ok(record) = &candidate.proof
            && slot.is_none_or(|slot| slot == record.grant.slot)
        {
            return decide(args, candidate, None, record.slots);
        }
    }
    Ok(Nested::Apart)
}

fn decide<'a>(
    args: &RunArgs,
    candidate: &'a Candidate,
    row: Option<&Holder>,
    slots: u16,
) -> Result<Nested<'a>, Error> {
    let key = &args.lock.key;
    if slots != args.lock.slots {
        let text = format!(
            "\"{key}\" is held with --slots {slots} by the job that this runs in, and --slots {} \
             was asked for: all who use a key must say the same",
            args.lock.slots
        );
        report_refusal(
            args,
            &Refused {
                word: "error",
                exit: Status::Config.into(),
                reason: Some(text.clone()),
                holder: row,
                waited: Duration::ZERO,
            },
        );
        return Err(ConfigError::Config(text).into());
    }
    let why = match (&candidate.proof, &candidate.outer.place) {
        (Ok(record), Some(place)) if args.reentrant => return Ok(Nested::Under(record, place)),
        (Err(why), _) if args.reentrant => format!(", but that cannot be proven here: {why}"),
        _ => ", and waiting for it would never end; \
              --reentrant runs the command under that lease"
            .to_owned(),
    };
    let line = format!("\"{key}\" is held by the job that this runs in{why}");
    super::console(&args.store).busy(&line);
    let exit = Exit::Code(args.lock.busy_exit);
    report_refusal(
        args,
        &Refused {
            word: "busy",
            exit,
            reason: Some(line),
            holder: row,
            waited: Duration::ZERO,
        },
    );
    Ok(Nested::Refused(exit))
}

/// Executes the command in the place of this process. The dblock that holds
/// the lease watches it, as it does everything below itself.
pub(super) fn run_under(args: &RunArgs, record: &Record, place: &Place) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let given = [
        ("--timeout", args.timeout.is_some()),
        ("--kill-after", args.kill_after.is_some()),
        ("--report", args.report.is_some()),
    ];
    let given: Vec<&str> = given
        .iter()
        .filter(|(_, is)| *is)
        .map(|(name, _)| *name)
        .collect();
    if !given.is_empty() {
        console.say(&format_args!(
            "warning: {} has no effect under the lease of the job that this runs in",
            given.join(", ")
        ));
    }
    console.tell(&format_args!(
        "\"{}\" is held by the job that this runs in; running under token {}",
        record.grant.key, record.grant.token
    ));
    let mask = SigSet::thread_get_mask().context("cannot read the signal mask")?;
    let spec = job_spec(args, Inherited::now(mask));
    let fault = child::replace(&spec, &variables(record, place));
    console.say(&fault.text);
    Ok(match fault.kind {
        Unstarted::NotFound => Status::NotFound.into(),
        Unstarted::NotExecutable => Status::NotExecutable.into(),
        Unstarted::NoProcess => Status::Internal.into(),
    })
}

/// Returns the variables through which a job knows its lease.
pub(super) fn variables(record: &Record, place: &Place) -> Vec<(String, String)> {
    let grant = &record.grant;
    [
        ("DBLOCK_KEY", grant.key.to_string()),
        ("DBLOCK_SLOT", grant.slot.to_string()),
        ("DBLOCK_OWNER", grant.owner.to_string()),
        ("DBLOCK_TOKEN", grant.token.to_string()),
        ("DBLOCK_TTL_MS", to_millis(record.ttl).to_string()),
        ("DBLOCK_LEASE", place.path().display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}
