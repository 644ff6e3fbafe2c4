//! The words of the ledger: what became of each lease, and how often nobody
//! could be granted a key.
//!
//! A lease gets one entry, when it ends. Who came in vain gets none of its
//! own: such attempts are counted.
//!
//! This module must not know the command line, SQL or any store.

use std::time::Duration;

use crate::lock::{Claimant, Grant, Kind};

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The job ended with a status of its own.
    Exited,
    /// The job died of a signal.
    Signaled,
    /// The job took longer than it may and was ended.
    Timeout,
    /// The lease was lost and the job was stopped.
    Lost,
    /// An operator took the lease away and the job was stopped.
    Revoked,
    /// A signal ended dblock before the job began.
    Interrupted,
    /// The command could not be started.
    NotStarted,
    /// A fault of dblock itself, or an end that nobody has seen.
    Error,
    /// A lease that was taken by hand was given back.
    Released,
    /// The holder never came back.
    Expired,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Self; 10] = [
        Self::Exited,
        Self::Signaled,
        Self::Timeout,
        Self::Lost,
        Self::Revoked,
        Self::Interrupted,
        Self::NotStarted,
        Self::Error,
        Self::Released,
        Self::Expired,
    ];

    /// Returns the word that tables, reports and JSON have for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signaled => "signaled",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::Revoked => "revoked",
            Self::Interrupted => "interrupted",
            Self::NotStarted => "not-started",
            Self::Error => "error",
            Self::Released => "released",
            Self::Expired => "expired",
        }
    }

    /// Returns the ending for a table's word; anything unknown is an error
    /// that nobody has seen.
    #[must_use]
    pub fn from_store(word: &str) -> Self {
        let known = Self::ALL.into_iter().find(|ending| ending.as_str() == word);
        known.unwrap_or(Self::Error)
    }
}

/// What became of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The grant.
    pub grant: Grant,
    /// What it was held by.
    pub kind: Kind,
    /// Who held it.
    pub claimant: Claimant,
    /// How it ended.
    pub ending: Ending,
    /// The status of the job, or of dblock if there was no job; `None` after a
    /// signal, and where nobody knows.
    pub status: Option<u8>,
    /// The signal that the job, or dblock, died of.
    pub signal: Option<i32>,
    /// Why it ended so, in words, where the rest does not say it.
    pub reason: Option<String>,
    /// Time from the start to the grant.
    pub waited: Duration,
    /// Time from the grant to the end.
    pub held: Duration,
    /// Number of renewals.
    pub renewals: u64,
    /// Time of the grant in milliseconds since 1970 UTC by the store's time of
    /// day, for people. Filled in by the store, as is `ended_at`.
    pub acquired_at: Option<i64>,
    /// Time of the end, likewise.
    pub ended_at: Option<i64>,
}

impl Entry {
    /// Tells whether it stands for a job that ended with status 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.ending == Ending::Exited && self.status == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_has_a_word_of_its_own() {
        for ending in Ending::ALL {
            assert_eq!(Ending::from_store(ending.as_str()), ending);
        }
        assert_eq!(Ending::from_store("nonsense"), Ending::Error);
    }
}
