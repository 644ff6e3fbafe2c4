//! What dblock does on a bad day: every fault of a network or a server, at
//! every phase of a run, and how the run ends.
//!
//! [`TABLE`] says what is expected. One test makes each of its rows happen,
//! another one holds `docs/faults.md` to it; `BLESS=1 tests/run faults` writes
//! that document anew.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dblock::clock::{self, Tick};

use crate::support::jobs;
use crate::support::middleman::{Act, Behind, Middleman, Stage, Times};
use crate::support::outcome;
use crate::support::place::Place;
use crate::support::wait;
use crate::support::wire::ServerError;

mod table;

use table::{Row, TABLE};

/// The lease of every run. What follows from it: a renewal after 2 s, a limit
/// of 1.8 s for each call, TERM for the job when no renewal has worked for
/// 4.2 s.
const TTL: Duration = Duration::from_secs(6);

/// The limit for a first contact, in place of the default of 5 s.
const CONNECT: Duration = Duration::from_secs(3);

/// How much later something may happen on a machine that has more to do.
const SLACK: Duration = Duration::from_secs(3);

/// Rows that are tried at a time. Nearly all of the time is waiting.
const AT_A_TIME: usize = 24;

/// What the job ends with if nobody ends it.
const STATUS: i32 = 7;

/// The job: appends its owner id and then the boot-time clock in milliseconds
/// to the file that is its first argument, for as many milliseconds as the
/// second one says.
const JOB: &str = r#"
use Time::HiRes qw(clock_gettime sleep);
open(F, '>>', $ARGV[0]) or die;
my $now = clock_gettime(7);
my $end = $now + $ARGV[1] / 1000;
syswrite(F, "start $ENV{DBLOCK_OWNER}\n");
for (; $now < $end; $now = clock_gettime(7)) {
    syswrite(F, sprintf("%d\n", $now * 1000));
    sleep(0.02);
}
exit 7;
"#;

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connect,
    /// Connecting, with `--wait`.
    Patient,
    Acquire,
    Idle,
    Renew,
    Release,
}

/// What became of the key's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// It is gone.
    Nothing,
    /// It stays until the lease has expired, or somebody takes it then.
    Expiring,
}

/// When dblock ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Without waiting for anything but the job.
    AtOnce,
    /// When a call had no answer within its limit, and the next one had.
    OneCall,
    /// When the limit for a first contact is over.
    Contact,
    /// When it has tried to release for two calls' limits.
    TwoCalls,
    /// When the job had to be stopped, so that it is dead before the lease
    /// ends.
    Lease,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    /// How often the job was started.
    starts: usize,
    status: i32,
    left: Left,
    when: When,
}

impl Phase {
    const ALL: [Self; 6] = [
        Self::Connect,
        Self::Patient,
        Self::Acquire,
        Self::Idle,
        Self::Renew,
        Self::Release,
    ];

    /// How long the job of a row lives: just long enough to see it, or until
    /// what goes wrong has had its consequences.
    fn job(self) -> Duration {
        match self {
            Self::Connect | Self::Patient | Self::Acquire | Self::Release => {
                Duration::from_millis(300)
            }
            Self::Idle | Self::Renew => Duration::from_secs(5),
        }
    }
}

/// What was seen of one run.
#[derive(Debug)]
struct Seen {
    end: End,
    /// How long it took, without the time that a job took which ended by
    /// itself.
    took: Duration,
    facts: String,
}

/// What the job has written.
#[derive(Debug)]
struct Witness {
    owners: Vec<String>,
    last: Option<Tick>,
}

impl Witness {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let owners = text.lines().filter_map(|line| line.strip_prefix("start "));
        // A line that was cut off by a SIGKILL is still a number, at worst a
        // smaller one.
        let last = text
            .lines()
            .filter_map(|line| line.parse().ok())
            .next_back();
        Self {
            owners: owners.map(str::to_owned).collect(),
            last: last.map(|ms| Tick::from_boot(Duration::from_millis(ms))),
        }
    }
}

/// Makes one row happen.
fn happen(place: &Place<'_>, key: &str, row: &Row) -> Seen {
    let server = place.database().server();
    let proxy = Middleman::start(Behind::Server(server.port()));
    let witness = place.file(&format!("witness-{key}"));
    let job = jobs::perl(
        JOB,
        &[
            witness.to_str().expect("the path is UTF-8"),
            &row.phase.job().as_millis().to_string(),
        ],
    );
    prepare(&proxy, row);
    let mut run = place
        .run(key)
        .env("DBLOCK_URL", place.database().url_at(proxy.port()))
        .args(["--ttl", "6s", "--connect-timeout", "3s"]);
    if row.phase == Phase::Patient {
        run = run.args(["--wait", "20s"]);
    }
    let running = run.job(&format!("exec {job}")).start();
    if row.phase == Phase::Idle {
        let owner = wait::until("the job to start", || {
            let mut owners = Witness::read(&witness).owners;
            owners.pop().ok_or_else(|| running.facts())
        });
        assert_eq!(place.row(key).owner, owner, "the job's lease");
        proxy.strike(row.act);
    }
    let output = running.wait();
    let now = clock::now();
    // A statement that arrives late must not count for less than one that is
    // there at once.
    proxy.wait_for_the_late();
    let rows = place.rows(key);
    let witness = Witness::read(&witness);
    let status = outcome::status(&output);
    let facts = format!(
        "{row:?}\n{output:?}\n{rows:?}\n{witness:?}\n{:?}",
        proxy.sent()
    );

    assert_sound(&proxy, &witness, status, &facts);
    let left = match rows.as_slice() {
        [] => Left::Nothing,
        [one] => {
            let left = place.left_ms(key);
            let ttl = i64::try_from(TTL.as_millis()).expect("a few seconds");
            assert!(left <= ttl, "{left} ms left: {facts}");
            if let (Some(last), Ok(left)) = (witness.last, u64::try_from(left)) {
                assert!(last < now + Duration::from_millis(left), "{facts}");
            }
            assert_eq!(one.kind, "run", "{facts}");
            Left::Expiring
        }
        more => panic!("{} rows: {facts}", more.len()),
    };
    let own_time = if status == STATUS {
        row.phase.job()
    } else {
        Duration::ZERO
    };
    let took = output.took.saturating_sub(own_time);
    Seen {
        end: End {
            starts: witness.owners.len(),
            status,
            left,
            when: row.end.when,
        },
        took,
        facts,
    }
}

/// Has the proxy do what the row says.
fn prepare(proxy: &Middleman, row: &Row) {
    match (row.phase, row.act) {
        (Phase::Idle, _) => {}
        (Phase::Connect | Phase::Patient, Act::Down(length)) => proxy.down(length),
        _ => proxy.order(row.stage, row.act, row.times),
    }
}

/// What holds whatever goes wrong.
fn assert_sound(proxy: &Middleman, witness: &Witness, status: i32, facts: &str) {
    let starts = witness.owners.len();
    assert!(starts <= 1, "the job was started {starts} times: {facts}");
    // Section "exit status" of the manual: these say that no job was started.
    let says_no_start = [69, 75, 78].contains(&status);
    let says_start = [STATUS, 76].contains(&status);
    assert!(says_no_start || says_start, "status {status}: {facts}");
    assert_eq!(says_start, starts == 1, "status {status}: {facts}");
    let sent = proxy.sent();
    let first = |stage| sent.iter().find(|one| one.stage == stage).map(|one| one.at);
    if starts == 1 {
        assert!(first(Stage::Acquire).is_some(), "no lease: {facts}");
    }
    if let (Some(last), Some(release)) = (witness.last, first(Stage::Release)) {
        // The clock of the job's stamps is cut to whole milliseconds.
        assert!(last <= release, "released under a living job: {facts}");
    }
}

/// Tells whether it took as long as the table says.
fn is_in_time(seen: &Seen) -> bool {
    let call = TTL * 3 / 10;
    let (least, most) = match seen.end.when {
        When::AtOnce => (Duration::ZERO, Duration::ZERO),
        When::OneCall => (call, call),
        When::Contact => (CONNECT, CONNECT + Duration::from_secs(1)),
        When::TwoCalls => (2 * call, 2 * call),
        When::Lease => (TTL * 7 / 10, TTL),
    };
    // Timers of sockets may fire a tick early.
    let early = Duration::from_millis(50);
    seen.took + early >= least && seen.took <= most + SLACK
}

#[test]
fn each_fault_ends_as_the_table_says() {
    let place = Place::mariadb();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(String::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(row) = TABLE.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let at = TABLE.iter().position(|one| std::ptr::eq(one, row));
                    let key = format!("fault-{}", at.expect("it is in the table"));
                    let seen = happen(&place, &key, row);
                    if std::env::var_os("EXPLORE").is_some()
                        || seen.end != row.end
                        || !is_in_time(&seen)
                    {
                        let mut wrong = wrong.lock().expect("no panic");
                        writeln!(
                            wrong,
                            "expected {:?}, saw {:?} after {:?}: {}\n",
                            row.end, seen.end, seen.took, seen.facts
                        )
                        .expect("a string takes everything");
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{wrong}");
}
