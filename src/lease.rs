//! The arithmetic of a lease: what is due when.
//!
//! All times count from S, the moment when the last successful acquire or
//! renewal was *sent*, never from its answer: the server cannot have granted
//! earlier than that, so what the holder believes always ends first.
//!
//! ```text
//! S          S + ttl/3            S + ttl - margin - grace   S + ttl - margin   S + ttl
//! granted    renew, then retry    TERM to the job            KILL               the server may
//!                                                                               give it away
//! ```
//!
//! This module must not wait, read a clock or know processes.

use std::time::Duration;

use thiserror::Error;

use crate::clock::Tick;
use crate::lock::Ttl;

/// The fixed distances of a lease's timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    ttl: Duration,
    grace: Duration,
    margin: Duration,
}

/// A TTL and a grace period that do not fit together.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "--kill-after {} does not fit --ttl {}: with the safety margin of {} it may be at most {}",
    show(.grace), show(.ttl), show(.margin), show(.most)
)]
pub struct GraceError {
    grace: Duration,
    ttl: Duration,
    margin: Duration,
    most: Duration,
}

impl GraceError {
    /// Returns the longest grace period that fits the TTL.
    #[must_use]
    pub fn most(&self) -> Duration {
        self.most
    }
}

fn show(length: &Duration) -> humantime::FormattedDuration {
    humantime::format_duration(*length)
}

impl Timeline {
    /// Shortest safety margin: time for the kernel to deliver SIGKILL to a
    /// tree of processes on a busy machine.
    const MARGIN_MIN: Duration = Duration::from_millis(100);
    /// Longest default grace period.
    const GRACE_MAX: Duration = Duration::from_secs(10);

    /// Returns the timeline of a lease of `ttl` whose job gets `kill_after`
    /// (default: a quarter of the TTL, at most 10 s) between TERM and KILL.
    ///
    /// # Errors
    ///
    /// Returns an error with the numbers if grace and margin together take
    /// more than half of the TTL: there would be no time to renew.
    pub fn new(ttl: Ttl, kill_after: Option<Duration>) -> Result<Self, GraceError> {
        let ttl = ttl.get();
        let margin = (ttl / 20).max(Self::MARGIN_MIN);
        let grace = kill_after.unwrap_or((ttl / 4).min(Self::GRACE_MAX));
        let most = ttl / 2 - margin;
        if grace > most {
            return Err(GraceError {
                grace,
                ttl,
                margin,
                most,
            });
        }
        Ok(Self { ttl, grace, margin })
    }

    /// Returns the time between TERM and KILL.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Returns when the next renewal is due after one sent at `sent`.
    #[must_use]
    pub fn renew_at(&self, sent: Tick) -> Tick {
        sent + self.ttl / 3
    }

    /// Returns the pause between attempts to renew after one has failed:
    /// short enough for about ten attempts before TERM is due, long enough
    /// not to hammer a server that is starting.
    #[must_use]
    pub fn retry_pause(&self) -> Duration {
        (self.ttl / 30).clamp(Duration::from_millis(50), Duration::from_secs(2))
    }

    /// Returns when the job must be asked to end.
    #[must_use]
    pub fn term_at(&self, sent: Tick) -> Tick {
        sent + (self.ttl - self.margin - self.grace)
    }

    /// Returns when the job must be killed.
    #[must_use]
    pub fn kill_at(&self, sent: Tick) -> Tick {
        sent + (self.ttl - self.margin)
    }

    /// Returns when the server may give the lease away.
    #[must_use]
    pub fn expires_at(&self, sent: Tick) -> Tick {
        sent + self.ttl
    }

    /// Tells whether a lease sent at `sent` has more than half of its TTL
    /// left at `now`: only then may a job start on it.
    #[must_use]
    pub fn may_start(&self, sent: Tick, now: Tick) -> bool {
        now - sent < self.ttl / 2
    }

    /// Returns the limit for one call of the store while a lease is held:
    /// below a third of the TTL, so that a hanging call leaves time for
    /// another one, and at most 10 s.
    #[must_use]
    pub fn call_limit(&self) -> Duration {
        (self.ttl * 3 / 10).min(Duration::from_secs(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ttl(length: Duration) -> Ttl {
        Ttl::new(length).expect("a valid TTL")
    }

    #[test]
    fn the_default_of_thirty_seconds() {
        let line = Timeline::new(ttl(Duration::from_secs(30)), None).expect("fits");
        let sent = Tick::from_boot(Duration::from_secs(100));
        let at = |seconds: f64| Tick::from_boot(Duration::from_secs_f64(seconds));
        assert_eq!(line.renew_at(sent), at(110.0));
        assert_eq!(line.term_at(sent), at(121.0));
        assert_eq!(line.kill_at(sent), at(128.5));
        assert_eq!(line.expires_at(sent), at(130.0));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let refused = Timeline::new(ttl(Duration::from_secs(10)), Some(Duration::from_secs(5)));
        assert_eq!(
            refused.map_err(|e| e.to_string()),
            Err(
                "--kill-after 5s does not fit --ttl 10s: with the safety margin of 500ms \
                 it may be at most 4s 500ms"
                    .into()
            )
        );
    }

    proptest! {
        #[test]
        fn the_order_holds_over_the_whole_range(
            ttl_ms in 1_000u64..=2_592_000_000,
            kill_after_ms in proptest::option::of(0u64..=2_592_000_000),
            sent_ms in 0u64..=1u64 << 40,
        ) {
            let ttl = ttl(Duration::from_millis(ttl_ms));
            let sent = Tick::from_boot(Duration::from_millis(sent_ms));
            let kill_after = kill_after_ms.map(Duration::from_millis);
            let Ok(line) = Timeline::new(ttl, kill_after) else {
                prop_assert!(kill_after.is_some(), "the default always fits");
                return Ok(());
            };
            prop_assert!(sent < line.renew_at(sent));
            prop_assert!(line.renew_at(sent) + line.retry_pause() < line.term_at(sent));
            prop_assert!(line.term_at(sent) <= line.kill_at(sent));
            prop_assert!(line.kill_at(sent) + Timeline::MARGIN_MIN <= line.expires_at(sent));
            prop_assert_eq!(line.kill_at(sent) - line.term_at(sent), line.grace());
            prop_assert!(line.call_limit() < ttl.get() / 3);
            prop_assert!(line.may_start(sent, sent));
            prop_assert!(!line.may_start(sent, sent + ttl.get() / 2));
        }
    }
}
