//! How dblock ends: every way in which a job ends, times everything that may
//! happen to it meanwhile, without a terminal and in one.

use std::collections::VecDeque;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;

use nix::sys::signal::Signal::{self, SIGINT, SIGKILL, SIGTERM};
use nix::sys::signal::killpg;
use nix::unistd::Pid;

use crate::support::family::Family;
use crate::support::jobs::quoted;
use crate::support::outcome::status;
use crate::support::place::{Gate, Place, Row};
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::pty::{BASH, CTRL_C, Terminal};

/// How a job, and dblock after it, ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    By(Signal),
}

impl End {
    /// Returns the status that a shell shows.
    fn shown(self) -> i32 {
        match self {
            Self::Exit(code) => code,
            Self::By(signal) => 128 + signal as i32,
        }
    }

    /// Returns the shell command that ends the shell in this way.
    fn command(self) -> String {
        match self {
            Self::Exit(code) => format!("exit {code}"),
            Self::By(signal) => format!("kill -{} $$", signal as i32),
        }
    }
}

/// What a job does when it is sent TERM or INT.
#[derive(Clone, Copy, Debug)]
enum Stopped {
    /// It dies of it.
    Dies,
    /// It catches it and ends in another way.
    Ends(End),
    /// It goes on.
    GoesOn,
}

/// A job.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Waits until it is let go on, and then ends in a way of its own.
    Waits { stopped: Stopped, last: End },
    /// There is no such command.
    NotFound,
    /// The command is there and cannot be executed.
    NotExecutable,
}

const JOBS: [Job; 9] = [
    Job::waits(Stopped::Dies, End::Exit(0)),
    Job::waits(Stopped::Dies, End::Exit(7)),
    Job::waits(Stopped::Dies, End::By(SIGTERM)),
    Job::waits(Stopped::Ends(End::Exit(0)), End::By(SIGKILL)),
    Job::waits(Stopped::Ends(End::Exit(3)), End::Exit(0)),
    Job::waits(Stopped::Ends(End::By(SIGKILL)), End::Exit(7)),
    Job::waits(Stopped::GoesOn, End::Exit(7)),
    Job::NotFound,
    Job::NotExecutable,
];

impl Job {
    const fn waits(stopped: Stopped, last: End) -> Self {
        Self::Waits { stopped, last }
    }

    /// Returns the words of the command. The job prints its process id and
    /// waits at the gate.
    fn command(self, gate: &Gate) -> Vec<String> {
        let (stopped, last) = match self {
            Self::Waits { stopped, last } => (stopped, last),
            Self::NotFound => return vec!["/no/such/command".to_owned()],
            Self::NotExecutable => return vec!["/etc/passwd".to_owned()],
        };
        let trap = match stopped {
            Stopped::Dies => String::new(),
            Stopped::Ends(end) => format!("trap {} TERM INT; ", quoted(&end.command())),
            Stopped::GoesOn => "trap '' TERM INT; ".to_owned(),
        };
        // The colons tell a whole number from what a terminal shows of it.
        let script = format!("{trap}echo job:$$:; {}; {}", gate.wait(), last.command());
        ["sh", "-c", &script].map(str::to_owned).to_vec()
    }
}

/// What happens while the job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    /// Nothing: it is let go on.
    Nothing,
    /// dblock is sent TERM.
    Term,
    /// The job's process group is sent INT, by the keyboard if there is one.
    /// If that does not end the job, it is let go on.
    Interrupt,
    /// It takes longer than it may.
    Timeout,
    /// The row is deleted.
    RowDeleted,
    /// Another owner has the row.
    RowStolen,
    /// Every packet is lost from now on.
    NetworkLost,
}

const HAPPENINGS: [Happening; 7] = [
    // Those that take longest come first, so that all end at about the same
    // time.
    Happening::NetworkLost,
    Happening::RowDeleted,
    Happening::RowStolen,
    Happening::Timeout,
    Happening::Term,
    Happening::Interrupt,
    Happening::Nothing,
];

/// What is in the table of locks at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// The row of another owner, as it was.
    Successor,
    /// The row that could not be deleted, until it expires.
    Own,
}

/// The contract: how dblock ends, and what it leaves.
fn expected(job: Job, happening: Happening) -> (End, Left) {
    let (stopped, last) = match job {
        Job::NotFound => return (End::Exit(127), Left::Nothing),
        Job::NotExecutable => return (End::Exit(126), Left::Nothing),
        Job::Waits { stopped, last } => (stopped, last),
    };
    // dblock ends like its job, unless it has itself ended the job for a
    // reason of its own: then nothing matters but the reason.
    match happening {
        Happening::Nothing => (last, Left::Nothing),
        Happening::Term => match stopped {
            Stopped::Dies => (End::By(SIGTERM), Left::Nothing),
            Stopped::Ends(end) => (end, Left::Nothing),
            Stopped::GoesOn => (End::By(SIGKILL), Left::Nothing),
        },
        Happening::Interrupt => match stopped {
            Stopped::Dies => (End::By(SIGINT), Left::Nothing),
            Stopped::Ends(end) => (end, Left::Nothing),
            Stopped::GoesOn => (last, Left::Nothing),
        },
        Happening::Timeout => (End::Exit(124), Left::Nothing),
        Happening::RowDeleted => (End::Exit(76), Left::Nothing),
        Happening::RowStolen => (End::Exit(76), Left::Successor),
        Happening::NetworkLost => (End::Exit(76), Left::Own),
    }
}

/// One job to which one thing happens.
#[derive(Clone, Copy, Debug)]
struct Cell {
    number: usize,
    job: Job,
    happening: Happening,
}

/// Returns the whole product. What cannot be started is too short for anything
/// to happen to it but its own end.
fn cells() -> VecDeque<Cell> {
    let all = HAPPENINGS
        .into_iter()
        .flat_map(|happening| JOBS.map(|job| (job, happening)));
    let possible = all.filter(|(job, happening)| {
        matches!(job, Job::Waits { .. })
            || matches!(happening, Happening::Nothing | Happening::Timeout)
    });
    possible
        .enumerate()
        .map(|(number, (job, happening))| Cell {
            number,
            job,
            happening,
        })
        .collect()
}

/// A cell that is being played.
struct Scene<'a> {
    cell: Cell,
    place: &'a Place<'static>,
    key: String,
    gate: Gate,
    proxy: Proxy,
    family: Family,
}

impl<'a> Scene<'a> {
    fn new(place: &'a Place<'static>, cell: Cell) -> Self {
        Self {
            cell,
            place,
            key: format!("cell {}", cell.number),
            gate: place.gate(),
            proxy: Proxy::start(place.database().server().port()),
            family: Family::new(),
        }
    }

    fn url(&self) -> String {
        self.place.database().url_at(self.proxy.port())
    }

    /// Returns the words after `dblock`.
    fn words(&self) -> Vec<String> {
        let mut words: Vec<_> = ["run", "--key", &self.key, "--kill-after", "400ms"]
            .map(str::to_owned)
            .to_vec();
        let options = match self.cell.happening {
            Happening::Timeout => ["--timeout", "1s"],
            Happening::RowDeleted | Happening::RowStolen | Happening::NetworkLost => {
                ["--ttl", "4s"]
            }
            Happening::Nothing | Happening::Term | Happening::Interrupt => ["--ttl", "30s"],
        };
        words.extend(options.map(str::to_owned));
        words.push("--".to_owned());
        words.extend(self.cell.job.command(&self.gate));
        words
    }

    /// Tells whether there will be a job to do something to.
    fn is_played(&self) -> bool {
        // A timeout needs no help, and may be over before anybody looks.
        matches!(self.cell.job, Job::Waits { .. }) && self.cell.happening != Happening::Timeout
    }

    /// Lets it happen, and returns the row as it has to stay.
    fn happen(&self, interrupt: impl FnOnce()) -> Row {
        let mut row = self.place.row(&self.key);
        match self.cell.happening {
            Happening::Nothing => self.gate.open(),
            Happening::Term => {
                let dblock = i32::try_from(row.pid).expect("a pid fits");
                let dblock = Process::of(dblock).expect("dblock is there");
                dblock.signal(SIGTERM);
            }
            Happening::Interrupt => {
                interrupt();
                let goes_on = matches!(
                    self.cell.job,
                    Job::Waits {
                        stopped: Stopped::GoesOn,
                        ..
                    }
                );
                if goes_on {
                    self.gate.open();
                }
            }
            Happening::Timeout => {}
            Happening::RowDeleted => self.place.delete(&self.key),
            Happening::RowStolen => row = self.place.steal(&self.key),
            Happening::NetworkLost => self.proxy.hold(),
        }
        row
    }

    /// Checks how it ended, and what is left.
    #[track_caller]
    fn check(&self, found: i32, row: Option<Row>, facts: &str) {
        self.family.assert_dead();
        let cell = self.cell;
        let (end, left) = expected(cell.job, cell.happening);
        assert_eq!(found, end.shown(), "{cell:?}: not {end:?}: {facts}");
        assert!(!facts.contains("panicked"), "{cell:?}: {facts}");
        let rows = self.place.rows(&self.key);
        match left {
            Left::Nothing => assert_eq!(rows, [], "{cell:?}: {facts}"),
            Left::Successor => assert_eq!(rows.first(), row.as_ref(), "{cell:?}: {facts}"),
            Left::Own => {
                let owners = |row: &Row| (row.owner.clone(), row.token);
                let (rows, row) = (rows.first().map(owners), row.as_ref().map(owners));
                assert_eq!(rows, row, "{cell:?}: {facts}");
            }
        }
        self.family.vanishes();
    }
}

/// Returns the process that a job has printed.
#[track_caller]
fn pid_in(shown: &str) -> Process {
    Process::printed(shown.trim_start_matches("job:").trim_end_matches(':'))
}

/// Plays a cell without a terminal.
fn play(scene: &Scene<'_>) {
    let run = scene.family.of(scene.place.dblock());
    let run = run.env("DBLOCK_URL", scene.url()).args(scene.words());
    let mut running = run.start();
    let row = scene.is_played().then(|| {
        let job = pid_in(&running.lines(1)[0]);
        scene.happen(|| {
            let group = job.group().expect("the job is there");
            killpg(Pid::from_raw(group), SIGINT).expect("the job can be signalled");
        })
    });
    let output = running.wait();
    scene.check(status(&output), row, &format!("{output:?}"));
}

/// Plays a cell in a terminal, as a command of an interactive shell.
fn play_in(terminal: &mut Terminal, scene: &Scene<'_>) {
    let words: Vec<_> = scene.words().iter().map(|word| quoted(word)).collect();
    let script = scene.place.file(&format!("script-{}", scene.cell.number));
    let line = format!(
        "export {} DBLOCK_URL={}\nexec dblock {}\n",
        scene.family.mark(),
        quoted(&scene.url()),
        words.join(" ")
    );
    fs::write(&script, line).expect("the script can be written");
    terminal.line(&format!("sh {}", script.display()));
    let row = scene.is_played().then(|| {
        terminal.expect("job:");
        let job = Process::printed(&terminal.expect(":"));
        terminal.wait_for_foreground(job);
        scene.happen(|| terminal.key(CTRL_C))
    });
    terminal.prompt();
    terminal.assert_shell_in_foreground();
    let found = terminal.status();
    scene.check(found, row, &terminal.facts());
}

/// How many cells are played at a time. They wait most of the time.
const STAGES: usize = 6;

/// Plays all cells on as many stages as there are, each with its own props.
fn play_all<Props>(
    place: &Place<'static>,
    props: impl Fn(&Place<'static>) -> Props + Sync,
    play: impl Fn(&mut Props, &Scene<'_>) + Sync,
    clear: impl Fn(Props) + Sync,
) {
    let cells = Mutex::new(cells());
    let next = || {
        let mut cells = cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells.pop_front()
    };
    thread::scope(|scope| {
        for _ in 0..STAGES {
            scope.spawn(|| {
                let mut props = props(place);
                while let Some(cell) = next() {
                    play(&mut props, &Scene::new(place, cell));
                }
                clear(props);
            });
        }
    });
}

#[test]
fn c1_c2_c6_every_end_of_every_job() {
    let place = Place::mariadb();
    play_all(&place, |_| (), |(), scene| play(scene), |()| ());
}

#[test]
fn c1_c2_c6_every_end_of_every_job_in_a_terminal() {
    let place = Place::mariadb();
    let terminal = |place: &Place<'static>| Terminal::with(place, BASH);
    play_all(&place, terminal, play_in, Terminal::exit);
}
