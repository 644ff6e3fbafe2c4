//! What dblock does on a bad day: each fault of a network or a server, in each
//! phase of a run, and how the run ends.
//!
//! [`SECTIONS`] says what is expected. One test makes all of it happen, another
//! one holds `docs/faults.md` to it; `BLESS=1 tests/run faults` writes
//! that document anew.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dblock::clock::{self, Tick};
use nix::sys::signal::Signal;

use crate::support::jobs;
use crate::support::middleman::{Act, Behind, Middleman, Stage, Times};
use crate::support::outcome;
use crate::support::place::Place;
use crate::support::running::Running;
use crate::support::wait;
use crate::support::wire::ServerError;

mod document;
mod table;

use table::SECTIONS;

/// The lease of every run. What follows from it: a renewal after 2 s, a limit
/// of 1.8 s for each call, TERM for the job when no renewal has worked for
/// 4.2 s.
const TTL: Duration = Duration::from_secs(6);

/// The limit for a first contact, in place of the default of 5 s.
const CONNECT: Duration = Duration::from_secs(3);

/// How long those wait who wait.
const WAIT: Duration = Duration::from_secs(8);

/// How much later something may happen on a machine that has more to do.
const SLACK: Duration = Duration::from_secs(3);

/// Cells that are tried at a time. Nearly all of the time is waiting.
const AT_A_TIME: usize = 20;

/// What the job ends with if nobody ends it.
const STATUS: i32 = 7;

/// What a shell shows for a dblock that SIGTERM has ended.
const TERMINATED: i32 = 128 + Signal::SIGTERM as i32;

/// The job: appends its owner id and then the boot-time clock in milliseconds
/// to the file that is its first argument, for as many milliseconds as the
/// second one says, and until the file is there that is the third.
const JOB: &str = r#"
use Time::HiRes qw(clock_gettime sleep);
open(F, '>>', $ARGV[0]) or die;
my $now = clock_gettime(7);
my $end = $now + $ARGV[1] / 1000;
syswrite(F, "start $ENV{DBLOCK_OWNER}\n");
for (; $now < $end || !-e $ARGV[2]; $now = clock_gettime(7)) {
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
    /// Between the grant and the first renewal.
    Idle,
    /// Between the grant and the end of a job that ends before a renewal.
    ShortIdle,
    Acquire,
    /// SIGTERM comes while the attempt to acquire is under way.
    Signal,
    /// The same, and what dblock sends to cancel it is lost.
    DeafSignal,
    Renew,
    Release,
}

impl Phase {
    /// Returns how long the job lives: just long enough to see it, or until
    /// what goes wrong has had its consequences.
    fn job(self) -> Duration {
        match self {
            Self::Idle | Self::Renew => Duration::from_secs(5),
            Self::ShortIdle => Duration::from_secs(1),
            _ => Duration::from_millis(300),
        }
    }

    fn is_idle(self) -> bool {
        matches!(self, Self::Idle | Self::ShortIdle)
    }

    fn is_signalled(self) -> bool {
        matches!(self, Self::Signal | Self::DeafSignal)
    }

    fn is_connecting(self) -> bool {
        matches!(self, Self::Connect | Self::Patient)
    }

    /// Returns the command whose packet is hit.
    fn stage(self) -> Stage {
        match self {
            Self::Connect | Self::Patient => Stage::Greeting,
            Self::Acquire | Self::Signal | Self::DeafSignal => Stage::Acquire,
            Self::Renew => Stage::Renew,
            Self::Release => Stage::Release,
            Self::Idle | Self::ShortIdle => Stage::Other,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Connect => "without `--wait`",
            Self::Patient => "with `--wait 8s`",
            Self::Idle => "a renewal comes next",
            Self::ShortIdle => "the release comes next",
            Self::Acquire => "acquire",
            Self::Signal => "the KILL arrives",
            Self::DeafSignal => "the KILL is lost",
            Self::Renew => "renew",
            Self::Release => "release",
        }
    }
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
    /// After the wait for one answer that does not come in time.
    OneCall,
    /// As soon as a call could be cancelled, or could not.
    LastWord,
    /// When a server is back that was away for a second.
    Back,
    /// When the limit for a first contact is over, at the latest.
    Contact,
    /// When the time of `--wait` is over.
    Patience,
    /// When it has tried to release for the limits of two calls.
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

/// A fault, and how a run ends that it happens to in each phase of a section.
#[derive(Clone, Copy, Debug)]
struct Fault {
    /// Where it happens, if the phase does not tell.
    stage: Option<Stage>,
    /// What happens, in words.
    what: &'static str,
    act: Act,
    times: Times,
    ends: &'static [End],
}

/// A table of the document.
#[derive(Clone, Copy, Debug)]
struct Section {
    title: &'static str,
    about: &'static str,
    phases: &'static [Phase],
    faults: &'static [Fault],
}

/// One cell of a table.
#[derive(Clone, Copy, Debug)]
struct Cell {
    phase: Phase,
    fault: &'static Fault,
    end: End,
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for section in SECTIONS {
        for fault in section.faults {
            assert_eq!(fault.ends.len(), section.phases.len(), "{}", fault.what);
            for (&phase, &end) in section.phases.iter().zip(fault.ends) {
                cells.push(Cell { phase, fault, end });
            }
        }
    }
    cells
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

/// Makes one cell happen.
fn happen(place: &Place<'_>, key: &str, cell: &Cell) -> Seen {
    let server = place.database().server();
    let proxy = Middleman::start(Behind::Server(server.port()));
    let files = ["witness", "seen"].map(|name| place.file(&format!("{name}-{key}")));
    let [witness, seen] = &files;
    let [witness_path, seen_path] =
        [witness, seen].map(|path| path.to_str().expect("the path is UTF-8"));
    let length = cell.phase.job().as_millis().to_string();
    let job = jobs::perl(JOB, &[witness_path, &length, seen_path]);
    prepare(&proxy, cell);
    let mut run = place
        .run(key)
        .env("DBLOCK_URL", place.database().url_at(proxy.port()))
        .args(["--ttl", "6s", "--connect-timeout", "3s"]);
    if cell.phase == Phase::Patient {
        run = run.args(["--wait", "8s"]);
    }
    let running = run.job(&format!("exec {job}")).start();
    if cell.phase.is_signalled() {
        proxy.wait_for(Stage::Acquire, cell.fault.act);
        running.signal(Signal::SIGTERM);
    }
    if let Some(owner) = job_of(&running, witness) {
        assert_eq!(place.row(key).owner, owner, "{cell:?}");
        if cell.phase.is_idle() {
            strike(&proxy, cell.fault);
        }
        fs::write(seen, "").expect("a file");
    }
    let output = running.wait();
    let now = clock::now();
    // A statement that arrives late must not count for less than one that is
    // there at once.
    proxy.wait_for_the_late();
    let rows = place.rows(key);
    let witness = Witness::read(witness);
    let status = outcome::status(&output);
    let facts = format!(
        "{cell:?}\n{output:?}\n{rows:?}\n{witness:?}\n{:?}",
        proxy.sent()
    );

    assert_sound(&proxy, &witness, status, &facts);
    let left = match rows.as_slice() {
        [] => Left::Nothing,
        [one] => {
            let left = place.left_ms(key);
            let ttl = i64::try_from(TTL.as_millis()).expect("a few seconds");
            assert!(left <= ttl, "{left} ms left: {facts}");
            let distance = Duration::from_millis(left.unsigned_abs());
            let expiry = if left > 0 {
                now + distance
            } else {
                now - distance
            };
            assert!(witness.last.is_none_or(|last| last < expiry), "{facts}");
            let lost = (status == 76).then_some(witness.owners.as_slice());
            assert!(
                lost.is_none_or(|owners| owners == [one.owner.as_str()]),
                "{facts}"
            );
            Left::Expiring
        }
        more => panic!("{} rows: {facts}", more.len()),
    };
    // Whatever was left, the next one gets the key.
    let next = place.run(key).args(["--wait", "15s"]).job("exit 0");
    next.run().code(0);
    place.assert_free(key);
    let own_time = if status == STATUS {
        cell.phase.job()
    } else {
        Duration::ZERO
    };
    let end = End {
        starts: witness.owners.len(),
        status,
        left,
        when: cell.end.when,
    };
    assert_told(&output.stderr, &end, cell.fault.times, &facts);
    Seen {
        end,
        took: output.took.saturating_sub(own_time),
        facts,
    }
}

/// Waits until the job has started, and returns its owner id; or until dblock
/// has ended without it.
fn job_of(running: &Running, witness: &Path) -> Option<String> {
    wait::until("the job to start, or dblock to end", || {
        let owner = Witness::read(witness).owners.pop();
        if owner.is_some() || !running.process().is_alive() {
            Ok(owner)
        } else {
            Err(running.facts())
        }
    })
}

/// Has the proxy do what the cell says.
fn prepare(proxy: &Middleman, cell: &Cell) {
    let Fault {
        stage, act, times, ..
    } = *cell.fault;
    match act {
        _ if cell.phase.is_idle() => {}
        Act::Down(length) if cell.phase.is_connecting() => proxy.down(length),
        _ => proxy.order(stage.unwrap_or(cell.phase.stage()), act, times),
    }
    if cell.phase == Phase::DeafSignal {
        proxy.order(Stage::Kill, Act::Cut, Times::Always);
    }
}

/// Ends what is between the job's start and the next command; or ends only the
/// connection, so that the fault happens while the next one is made.
fn strike(proxy: &Middleman, fault: &Fault) {
    let Some(stage) = fault.stage else {
        return proxy.strike(fault.act);
    };
    proxy.order(stage, fault.act, fault.times);
    proxy.strike(Act::HangUp);
}

/// What holds whatever goes wrong.
fn assert_sound(proxy: &Middleman, witness: &Witness, status: i32, facts: &str) {
    let starts = witness.owners.len();
    assert!(starts <= 1, "the job was started {starts} times: {facts}");
    // Section "exit status" of the manual: these say that no job was started.
    let says_no_start = [69, 75, 78, TERMINATED].contains(&status);
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

/// Checks that dblock says what a person has to know, and nothing of a fault
/// that it has got over, unless it had to try more than once.
fn assert_told(said: &str, end: &End, times: Times, facts: &str) {
    let ours = said.lines().all(|line| line.starts_with("dblock: "));
    assert!(ours, "a line of another kind: {facts}");
    if ![STATUS, TERMINATED].contains(&end.status) {
        assert_ne!(said, "", "no word of the reason: {facts}");
    }
    if end.status == STATUS && end.left == Left::Nothing && times == Times::Once {
        let over = said.is_empty() || said.contains("works again");
        assert!(over, "a word of what is over: {facts}");
    }
}

/// Tells whether it took as long as the table says.
fn is_in_time(seen: &Seen) -> bool {
    let call = TTL * 3 / 10;
    let last_word = Duration::from_secs(1);
    let (least, most) = match seen.end.when {
        When::AtOnce => (Duration::ZERO, Duration::ZERO),
        When::OneCall => (call, call),
        When::LastWord => (Duration::ZERO, 2 * last_word),
        When::Back => (Duration::ZERO, last_word),
        When::Contact => (call, CONNECT + last_word),
        When::Patience => (WAIT, WAIT + last_word),
        When::TwoCalls => (2 * call, 2 * call),
        When::Lease => (TTL * 7 / 10, TTL),
    };
    // The tick of a timer, and what the job itself took longer.
    let early = Duration::from_millis(100);
    seen.took + early >= least && seen.took <= most + SLACK
}

#[test]
fn the_document_says_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/faults.md");
    let text = document::text();
    if env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder");
        fs::write(&path, text).expect("the file can be written");
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "{} is not what the table says; write it anew with BLESS=1 tests/run faults",
        path.display()
    );
}

#[test]
fn each_fault_ends_as_the_table_says() {
    let place = Place::mariadb();
    let cells = cells();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(number) else { break };
                    let key = format!("fault-{number}");
                    // One that goes quite wrong must not hide the others.
                    let seen = panic::catch_unwind(AssertUnwindSafe(|| happen(&place, &key, cell)));
                    let saw = match seen {
                        Ok(seen) if seen.end == cell.end && is_in_time(&seen) => continue,
                        Ok(seen) => {
                            let Seen { end, took, facts } = seen;
                            format!("saw {end:?} after {took:?}: {facts}")
                        }
                        Err(_) => "failed as is said above".to_owned(),
                    };
                    wrong.lock().expect("no panic").push((*cell, saw));
                }
            });
        }
    });
    let mut report = String::new();
    for (cell, saw) in wrong.into_inner().expect("no panic") {
        let Cell { phase, fault, end } = cell;
        let (what, times) = (fault.what, fault.times);
        write!(
            report,
            "\n{phase:?}: {what} ({times:?})\nexpected {end:?}\n{saw}\n"
        )
        .expect("a string takes everything");
    }
    assert!(report.is_empty(), "{report}");
}
