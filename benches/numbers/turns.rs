//! Programs that take turns: A B C, A B C, and so on, so that whatever else the
//! machine does hits all of them alike.

use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Turns before anything is counted: caches fill, files are created.
const WARM_UP: u32 = 5;

/// Durations of one program's turns, sorted.
pub(crate) struct Turns(Vec<Duration>);

impl Turns {
    /// Returns durations that were taken elsewhere.
    pub(crate) fn of(mut durations: Vec<Duration>) -> Self {
        durations.sort();
        Self(durations)
    }

    /// Returns the duration that this part of all turns stays below.
    fn quantile(&self, part: f64) -> Duration {
        let last = self.0.len() - 1;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place in a short list"
        )]
        let place = (last as f64 * part).round() as usize;
        self.0[place]
    }

    /// Returns the median in milliseconds.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5).as_secs_f64() * 1e3
    }
}

impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, middle, high] =
            [0.25, 0.5, 0.75].map(|part| self.quantile(part).as_secs_f64() * 1e3);
        write!(f, "{middle:.2} ({low:.2} to {high:.2}) ms")
    }
}

/// Has the programs take turns, and returns the durations of each, from before
/// its start to after its end.
pub(crate) fn take(mut programs: Vec<Command>, turns: u32) -> Vec<Turns> {
    for program in &mut programs {
        program
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
    }
    let mut taken: Vec<Vec<Duration>> = vec![Vec::new(); programs.len()];
    for turn in 0..WARM_UP + turns {
        for (program, durations) in programs.iter_mut().zip(&mut taken) {
            let begin = Instant::now();
            let status = program.status().expect("the program can be started");
            let took = begin.elapsed();
            assert!(status.success(), "{status}: {program:?}");
            if turn >= WARM_UP {
                durations.push(took);
            }
        }
    }
    taken.into_iter().map(Turns::of).collect()
}
