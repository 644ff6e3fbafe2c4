//! Many processes on one key, for as long as `DBLOCK_TEST_SECONDS` says.
//! `tests/soak` takes its time; here a few seconds show that it works at all.

use std::env;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::on_every_store;
use crate::support::place::Place;

on_every_store!(e1_one_of_twelve_at_a_time);

/// Processes that go for the key in turn.
const PROCESSES: usize = 12;

fn seconds() -> Duration {
    let text = env::var("DBLOCK_TEST_SECONDS").unwrap_or_else(|_| "4".to_owned());
    Duration::from_secs(text.parse().expect("DBLOCK_TEST_SECONDS is a number"))
}

/// Each job appends when it begins and when it ends, with its token. With one
/// at a time the file is a row of pairs, and the tokens rise.
fn e1_one_of_twelve_at_a_time(place: &Place) {
    let witness = place.file("witness");
    let job = format!(
        "echo begin $DBLOCK_TOKEN >> '{0}'; echo end $DBLOCK_TOKEN >> '{0}'",
        witness.display()
    );
    let limit = Instant::now() + seconds();
    let grants: usize = thread::scope(|scope| {
        let loops: Vec<_> = (0..PROCESSES)
            .map(|_| {
                scope.spawn(|| {
                    let mut grants = 0;
                    while Instant::now() < limit {
                        let run = place.run("storm").args(["--wait", "60s", "--ttl", "5s"]);
                        run.job(&job).run().code(0).quiet();
                        grants += 1;
                    }
                    grants
                })
            })
            .collect();
        loops
            .into_iter()
            .map(|one| one.join().expect("a loop ends well"))
            .sum()
    });

    let witness = fs::read_to_string(witness).expect("the jobs wrote");
    let lines: Vec<&str> = witness.lines().collect();
    assert_eq!(lines.len(), 2 * grants, "each job began and ended once");
    let mut last = 0;
    for pair in lines.chunks(2) {
        let token = pair[0].strip_prefix("begin ").unwrap_or_default();
        assert_eq!(pair[1], format!("end {token}"), "jobs overlapped");
        let token: u64 = token.parse().expect("a token");
        assert!(token > last, "token {token} after {last}");
        last = token;
    }
    place.assert_free("storm");
}
