//! The table of exit statuses: the only place that knows their numbers.
//!
//! The man pages take the table from here, and a test holds the README to it.

use anyhow::Error;

use crate::config::ConfigError;
use crate::lease::GraceError;
use crate::signals;
use crate::store::StoreError;
use crate::supervise::{Ended, Outcome, Unstarted};

/// How dblock ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With one of its own statuses.
    Own(Status),
    /// With a status that is not from the table: the job's own, or the one
    /// given with `--busy-exit`.
    Code(u8),
    /// By the signal with this number, as its job did.
    Signal(i32),
}

/// dblock's own statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It worked.
    Success,
    /// Bad usage, found before any connection.
    Usage,
    /// The database cannot be reached or used now.
    Unavailable,
    /// A fault of dblock itself.
    Internal,
    /// The key is busy.
    Busy,
    /// The lease was lost and the job was stopped.
    Lost,
    /// Not held by that owner.
    NotHeld,
    /// The configuration makes no sense, or the database refuses.
    Config,
    /// `--timeout` ended the job.
    Timeout,
    /// The command cannot be executed.
    NotExecutable,
    /// The command is not found.
    NotFound,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The status.
    pub status: Status,
    /// Its number.
    pub code: u8,
    /// What it means, for the man page and the README.
    pub meaning: &'static str,
}

/// The statuses and what they mean, by number.
pub const TABLE: &[Row] = &[
    row(
        Status::Success,
        0,
        "success: for run, the job's own status 0",
    ),
    row(
        Status::Usage,
        64,
        "usage: options, keys, durations, a URL on the command line; found before any connection",
    ),
    row(
        Status::Unavailable,
        69,
        "the database cannot be reached or used now; no job was started, and trying again may help",
    ),
    row(Status::Internal, 70, "a fault of dblock itself"),
    row(
        Status::Busy,
        75,
        "busy: somebody else holds the key, it is blocked or kept closed, or it has been done already with --once-per (--busy-exit changes the number)",
    ),
    row(
        Status::Lost,
        76,
        "the lease was lost and the job was stopped, however it died",
    ),
    row(
        Status::NotHeld,
        77,
        "renew, release, check, force-release: not held by that owner, or less than --min-left is left; status: a named key is free; unblock: the key was not blocked",
    ),
    row(
        Status::Config,
        78,
        "configuration: no store is configured, a variable or file makes no sense, tables are missing or wrong, access is denied, the server is read-only, or others use the key with another number of slots",
    ),
    row(Status::Timeout, 124, "--timeout ended the job"),
    row(Status::NotExecutable, 126, "the command cannot be executed"),
    row(Status::NotFound, 127, "the command is not found"),
];

const fn row(status: Status, code: u8, meaning: &'static str) -> Row {
    Row {
        status,
        code,
        meaning,
    }
}

impl Status {
    /// Returns the status's number.
    #[must_use]
    pub fn code(self) -> u8 {
        // A test holds that each status is in the table.
        TABLE
            .iter()
            .find(|row| row.status == self)
            .map_or(u8::MAX, |row| row.code)
    }
}

impl Exit {
    /// Success.
    pub const SUCCESS: Self = Self::Own(Status::Success);

    /// Returns the number that the process is to exit with. Ends it by the
    /// signal instead, if there is one; the first process of a container
    /// cannot die of a signal, and exits with 128 + n as a shell would.
    #[must_use]
    pub fn end(self) -> u8 {
        match self {
            Self::Own(status) => status.code(),
            Self::Code(code) => code,
            Self::Signal(number) => {
                signals::die_of(number);
                128u8.wrapping_add(u8::try_from(number).unwrap_or(0))
            }
        }
    }
}

impl Exit {
    /// Returns how dblock ends after a run with this outcome.
    #[must_use]
    pub fn after(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Ended(Ended::Exited(status)) => Self::Code(*status),
            Outcome::Ended(Ended::Signaled(number)) => Self::Signal(*number),
            Outcome::Lost(..) => Status::Lost.into(),
            Outcome::Timeout(_) => Status::Timeout.into(),
            Outcome::NotStarted(fault) => match fault.kind {
                Unstarted::NotFound => Status::NotFound.into(),
                Unstarted::NotExecutable => Status::NotExecutable.into(),
                Unstarted::NoProcess => Status::Internal.into(),
            },
            Outcome::Unseen => Status::Internal.into(),
            Outcome::Interrupted(sig) => Self::Signal(sig.number()),
            Outcome::Unproven(_) => Status::Unavailable.into(),
        }
    }

    /// Returns how dblock ends after an error.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        if let Some(error) = error.downcast_ref::<StoreError>() {
            return Self::of_store(error);
        }
        match error.downcast_ref::<ConfigError>() {
            Some(ConfigError::Usage(_)) => Status::Usage.into(),
            Some(ConfigError::Config(_)) => Status::Config.into(),
            None if error.is::<GraceError>() => Status::Usage.into(),
            None => Status::Internal.into(),
        }
    }

    /// Returns how dblock ends after an error of the store.
    #[must_use]
    pub fn of_store(error: &StoreError) -> Self {
        match error {
            StoreError::Transient(_) | StoreError::Unreachable(_) | StoreError::Unavailable(_) => {
                Status::Unavailable.into()
            }
            StoreError::ReadOnly(_) | StoreError::Denied(_) | StoreError::Schema(_) => {
                Status::Config.into()
            }
        }
    }

    /// Returns the number to exit with; `None` for a death by a signal.
    #[must_use]
    pub fn status(self) -> Option<u8> {
        match self {
            Self::Own(status) => Some(status.code()),
            Self::Code(code) => Some(code),
            Self::Signal(_) => None,
        }
    }

    /// Returns the signal to die of.
    #[must_use]
    pub fn signal(self) -> Option<i32> {
        match self {
            Self::Signal(number) => Some(number),
            Self::Own(_) | Self::Code(_) => None,
        }
    }
}

impl From<Status> for Exit {
    fn from(status: Status) -> Self {
        Self::Own(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole_and_unambiguous() {
        let all = [
            Status::Success,
            Status::Usage,
            Status::Unavailable,
            Status::Internal,
            Status::Busy,
            Status::Lost,
            Status::NotHeld,
            Status::Config,
            Status::Timeout,
            Status::NotExecutable,
            Status::NotFound,
        ];
        assert_eq!(TABLE.len(), all.len());
        assert!(all.iter().all(|s| TABLE.iter().any(|row| row.status == *s)));
        assert!(TABLE.windows(2).all(|pair| pair[0].code < pair[1].code));
    }
}
