//! The clock that leases are counted on: time since boot, suspend included.
//!
//! `std::time::Instant` stands still while a machine sleeps, and the time of
//! day is stepped by people and by NTP; a lease in the database does neither.
//! `CLOCK_BOOTTIME` (clock_gettime(2)) is the one clock of a host that runs as
//! the lease does.
//!
//! This module must not know leases.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment on a host's boot-time clock. Only differences mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tick(Duration);

impl Tick {
    /// Returns the moment `since_boot` after the machine was started.
    #[must_use]
    pub const fn from_boot(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// Returns the time since the machine was started.
    #[must_use]
    pub const fn since_boot(self) -> Duration {
        self.0
    }
}

impl Add<Duration> for Tick {
    type Output = Self;

    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length))
    }
}

impl Sub<Duration> for Tick {
    type Output = Self;

    /// Returns the earlier moment, at the earliest that of boot.
    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(length))
    }
}

impl Sub for Tick {
    type Output = Duration;

    /// Returns the time from `earlier` to this moment, zero if it lies ahead.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Returns the present moment of `CLOCK_BOOTTIME`.
///
/// # Panics
///
/// Panics if the kernel has no such clock (Linux before 2.6.39): without it
/// no lease can be counted, and no job may run.
#[must_use]
#[expect(
    clippy::expect_used,
    reason = "there is no safe way on without a clock, and every supported kernel has it"
)]
pub fn now() -> Tick {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .expect("the kernel has a boot-time clock");
    Tick(Duration::from(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_forward_and_never_wraps() {
        let first = now();
        assert!(now() >= first);
        assert_eq!(Tick::default() - Duration::from_secs(1), Tick::default());
        assert_eq!(Tick::default() - (first + Duration::MAX), Duration::ZERO);
    }
}
