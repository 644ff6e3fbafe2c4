//! Waiting for a condition, with a limit.
//!
//! No test sleeps and hopes: each polls for what it waits for, and tells all
//! it knows when the time is up.

use std::time::{Duration, Instant};

/// The limit for everything that should happen at once. It is generous,
/// because machines that run tests are busy; it costs nothing when all is well.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Polls `probe` until it returns `Ok`, and returns that.
///
/// # Panics
///
/// Panics after `limit` with `what` was waited for and the facts of the last
/// look, which `probe` returns as its error.
#[track_caller]
pub(crate) fn within<T>(
    limit: Duration,
    what: &str,
    mut probe: impl FnMut() -> Result<T, String>,
) -> T {
    let begin = Instant::now();
    loop {
        // The time is taken before the look, so that a look which itself was
        // held up still counts if it finds what is waited for.
        let late = begin.elapsed() > limit;
        match probe() {
            Ok(found) => return found,
            Err(facts) if late => panic!("waited {limit:?} for {what}; at last: {facts}"),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Polls `probe` as [`within`] does, for at most [`LIMIT`].
#[track_caller]
pub(crate) fn until<T>(what: &str, probe: impl FnMut() -> Result<T, String>) -> T {
    within(LIMIT, what, probe)
}
