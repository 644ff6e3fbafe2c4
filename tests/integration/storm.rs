//! Many processes on one key, for as long as `DBLOCK_TEST_SECONDS` says, on
//! stores that work and on a server that dies again and again. `tests/soak`
//! takes its time; here a few seconds show that it works at all.

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::on_every_store;
use crate::support::outcome::status;
use crate::support::place::Place;
use crate::support::server::Server;
use crate::support::wait;

on_every_store!(e1_one_of_twelve_at_a_time);

/// Processes that go for the key in turn.
const PROCESSES: usize = 12;

/// Returns how long a test takes, by default this many seconds.
fn seconds(default: u64) -> Duration {
    let seconds = match env::var("DBLOCK_TEST_SECONDS") {
        Ok(text) => text.parse().expect("DBLOCK_TEST_SECONDS is a number"),
        Err(_) => default,
    };
    Duration::from_secs(seconds)
}

/// Each job appends when it begins and when it ends, with its token. With one
/// at a time the file is a row of pairs, and the tokens rise.
fn e1_one_of_twelve_at_a_time(place: &Place) {
    let witness = place.file("witness");
    let job = format!(
        "echo begin $DBLOCK_TOKEN >> '{0}'; echo end $DBLOCK_TOKEN >> '{0}'",
        witness.display()
    );
    let limit = Instant::now() + seconds(4);
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

    let pairs = assert_in_pairs(&witness);
    assert_eq!(pairs, grants, "each job began and ended once");
    place.assert_free("storm");
}

/// Checks that the jobs which wrote this file began and ended one by one, and
/// that their tokens rose; returns how many there were.
#[track_caller]
fn assert_in_pairs(witness: &Path) -> usize {
    let witness = fs::read_to_string(witness).expect("the jobs wrote");
    let lines: Vec<&str> = witness.lines().collect();
    let mut last = 0;
    for pair in lines.chunks(2) {
        let token = pair[0].strip_prefix("begin ").unwrap_or_default();
        let end = format!("end {token}");
        assert_eq!(pair.get(1), Some(&end.as_str()), "jobs overlapped");
        let token: u64 = token.parse().expect("a token");
        assert!(token > last, "token {token} after {last}");
        last = token;
    }
    lines.len() / 2
}

/// Loops that go for the key while its server dies and comes back.
const LOOPS: usize = 8;

/// Time between two deaths of the server.
const DEATHS: Duration = Duration::from_secs(5);

/// Shortest time, in seconds, for which a lease would keep the key shut that
/// nobody knows of, and some air.
const NO_LEASE_LEFT: u64 = 25;

/// Longest pause between two calls of a loop, in which others come to it.
const PAUSE_MS: u64 = 500;

/// How long the last calls may take when the time is over.
const LAST_CALLS: Duration = Duration::from_secs(60);

/// What came of the calls under a server that dies again and again.
#[derive(Debug, Default)]
struct Toll {
    /// Calls whose job ran and succeeded.
    ran: usize,
    /// Calls that ended without a job because the database could not be used.
    refused: usize,
    /// Calls that had something to tell.
    told: usize,
}

/// Returns a job that notes in `files` that it alone was there, with which
/// token, and that it came to its end; it takes 0.2 s to 0.8 s.
fn witness(files: &Path, length_ms: u64) -> String {
    format!(
        "cd '{}' || exit 1; mkdir alone || echo $DBLOCK_TOKEN >> overlaps; \
         echo begin $DBLOCK_TOKEN >> tokens; date +%s >> times; sleep 0.{length_ms}; \
         echo end $DBLOCK_TOKEN >> tokens; rmdir alone || echo $DBLOCK_TOKEN >> overlaps",
        files.display()
    )
}

/// Returns the longest time between the beginnings of two jobs, in seconds.
#[track_caller]
fn longest_pause(times: &Path) -> u64 {
    let times = fs::read_to_string(times).expect("the jobs wrote");
    let times: Vec<u64> = times
        .lines()
        .map(|line| line.parse().expect("a time"))
        .collect();
    let pauses = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    pauses.max().unwrap_or(0)
}

/// Calls dblock in turn until the moment comes, and counts what comes of it.
fn until_the_end(place: &Place<'_>, files: &Path, end: Instant) -> Toll {
    let mut toll = Toll::default();
    while Instant::now() < end {
        let job = witness(files, fastrand::u64(200..800));
        let run = place.run("storm").args(["--wait", "--ttl", "30s"]);
        let running = run.job(&job).start();
        let limit = end.saturating_duration_since(Instant::now()) + LAST_CALLS;
        wait::within(limit, "a call to end", || {
            if running.process().is_alive() {
                return Err(running.facts());
            }
            Ok(())
        });
        let output = running.wait();
        toll.told += usize::from(!output.stderr.is_empty());
        match status(&output) {
            0 => toll.ran += 1,
            69 => toll.refused += 1,
            other => panic!("status {other}: {}", output.stderr),
        }
        thread::sleep(Duration::from_millis(fastrand::u64(0..PAUSE_MS)));
    }
    toll
}

/// A server that is back within a second or two costs no job its lease of
/// 30 s: every job that was started comes to its end, alone.
#[test]
fn d2_a_server_that_is_killed_again_and_again() {
    let server = Server::start();
    let place = Place::on(&server);
    let files = place.file("witness");
    fs::create_dir(&files).expect("a directory for the witnesses");
    let end = Instant::now() + seconds(13);
    let (tolls, deaths) = thread::scope(|scope| {
        let loops: Vec<_> = (0..LOOPS)
            .map(|_| scope.spawn(|| until_the_end(&place, &files, end)))
            .collect();
        let mut deaths = 0;
        while Instant::now() + DEATHS < end {
            // The pace of the storm; nothing waits for the end of it.
            thread::sleep(DEATHS);
            server.kill();
            server.start_again();
            deaths += 1;
        }
        let tolls = loops
            .into_iter()
            .map(|one| one.join().expect("a loop ends well"));
        (tolls.collect::<Vec<_>>(), deaths)
    });

    assert!(deaths >= 1, "the server was never killed");
    let overlaps = fs::read_to_string(files.join("overlaps")).unwrap_or_default();
    assert_eq!(overlaps, "", "jobs overlapped; {tolls:?}");
    let grants = assert_in_pairs(&files.join("tokens"));
    let ran: usize = tolls.iter().map(|toll| toll.ran).sum();
    assert_eq!(grants, ran, "each job is a success; {tolls:?}");
    assert!(ran > deaths, "{ran} jobs and {deaths} deaths; {tolls:?}");
    let longest = longest_pause(&files.join("times"));
    assert!(
        longest < NO_LEASE_LEFT,
        "{longest} s without a job; {tolls:?}"
    );
    place.assert_free("storm");
    if env::var_os("DBLOCK_TEST_SECONDS").is_some() {
        // Whoever runs it for long wants to know how much has happened.
        let text = format!(
            "{deaths} deaths of the server, {grants} grants, {longest} s without at most: {tolls:?}"
        );
        writeln!(std::io::stderr(), "{text}").ok();
    }
}
