//! Calls dblock with a clean environment and keeps all that it says.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::running::Running;
use super::{PASSWORD, janitor};

/// Path of the program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_dblock");

/// A call of dblock, or of a script around it, that has not been made yet.
///
/// The environment holds `PATH` (with dblock first), `HOME` and `TMPDIR` (both
/// empty and the call's own), and nothing else. The working directory is
/// `TMPDIR`, standard input is empty, and the process group is the call's own,
/// so that a terminal in which the tests run has no part in them.
#[derive(Debug)]
pub(crate) struct Dblock {
    command: Command,
    scratch: Scratch,
    secret_allowed: bool,
}

/// The directories and the output of one call.
#[derive(Debug)]
pub(crate) struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(janitor::directory());
        for name in ["home", "tmp"] {
            fs::create_dir(scratch.path(name)).expect("a directory in it");
        }
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Opens a file for output, to append to, as everybody writes to it who
    /// inherits the descriptor.
    fn sink(&self, name: &str) -> File {
        let opened = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path(name));
        opened.expect("a file for the output")
    }

    /// Returns what was written so far.
    pub(crate) fn written(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("the output can be read")
    }
}

impl Dblock {
    /// Returns dblock without any configuration.
    pub(crate) fn unconfigured() -> Self {
        Self::program(PROGRAM)
    }

    /// Returns `sh` with a script that may call `dblock`.
    pub(crate) fn shell(script: &str) -> Self {
        Self::program("/bin/sh").args(["-c", script])
    }

    /// Returns another program in the same surroundings, for comparison.
    pub(crate) fn program(program: impl AsRef<OsStr>) -> Self {
        let scratch = Scratch::new();
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", search_path())
            .env("HOME", scratch.path("home"))
            .env("TMPDIR", scratch.path("tmp"))
            .current_dir(scratch.path("tmp"))
            .stdin(Stdio::null())
            .stdout(scratch.sink("stdout"))
            .stderr(scratch.sink("stderr"))
            .process_group(0);
        Self {
            command,
            scratch,
            secret_allowed: false,
        }
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub(crate) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Adds `--` and a shell command as the job.
    pub(crate) fn job(self, script: &str) -> Self {
        self.args(["--", "sh", "-c", script])
    }

    /// Sets a variable of the environment.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Removes a variable from the environment.
    pub(crate) fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Sets the working directory.
    pub(crate) fn cwd(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Sets what can be read from standard input.
    pub(crate) fn stdin(mut self, text: &str) -> Self {
        let path = self.scratch.path("stdin");
        fs::write(&path, text).expect("a file for the input");
        self.command
            .stdin(File::open(path).expect("the input can be read"));
        self
    }

    /// Makes standard output a pipe whose reader is gone.
    pub(crate) fn stdout_that_nobody_reads(mut self) -> Self {
        let (_, writer) = std::io::pipe().expect("a pipe");
        self.command.stdout(writer);
        self
    }

    /// Lets the output hold the password, because the job was told to show it.
    pub(crate) fn may_show_the_secret(mut self) -> Self {
        self.secret_allowed = true;
        self
    }

    /// Starts the call.
    #[track_caller]
    pub(crate) fn start(self) -> Running {
        let Self {
            mut command,
            scratch,
            secret_allowed,
        } = self;
        let shown = show(&command);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        Running::new(
            child,
            Call {
                shown,
                scratch,
                secret_allowed,
            },
        )
    }

    /// Makes the call and waits for its end.
    #[track_caller]
    pub(crate) fn run(self) -> Output {
        self.start().wait()
    }
}

/// Returns a `PATH` that is the same on every machine and for every user.
fn search_path() -> OsString {
    let directory = Path::new(PROGRAM).parent().expect("it is in a directory");
    let places = [directory, Path::new("/usr/bin"), Path::new("/bin")];
    std::env::join_paths(places).expect("the directory's name has no colon")
}

/// Returns the command line, and the URL if it is in the environment.
fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut shown: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    for (name, value) in command.get_envs() {
        if let (Some("DBLOCK_URL"), Some(value)) = (name.to_str(), value) {
            shown.insert(0, format!("DBLOCK_URL={}", value.to_string_lossy()).into());
        }
    }
    shown.join(" ")
}

/// A call that was made.
#[derive(Debug)]
pub(crate) struct Call {
    shown: String,
    pub(crate) scratch: Scratch,
    secret_allowed: bool,
}

impl Call {
    /// Returns the call and what it wrote so far, to be shown by a failure.
    pub(crate) fn facts(&self) -> String {
        let mut facts = self.shown.clone();
        for name in ["stdout", "stderr"] {
            let text = self.scratch.written(name);
            write!(facts, "\n--- {name}\n{}", String::from_utf8_lossy(&text))
                .expect("a string takes everything");
        }
        facts
    }

    /// Returns the outcome, and fails if a secret was shown or a file was left
    /// behind, which no test expects.
    #[track_caller]
    pub(crate) fn ended(self, status: ExitStatus, took: Duration) -> Output {
        let facts = format!("{}\n--- {status} after {took:?}", self.facts());
        for name in ["stdout", "stderr"] {
            let text = self.scratch.written(name);
            let shown = String::from_utf8_lossy(&text).contains(PASSWORD);
            assert!(
                self.secret_allowed || !shown,
                "the secret is shown: {facts}"
            );
        }
        for name in ["home", "tmp"] {
            let left = fs::read_dir(self.scratch.path(name)).expect("the directory is there");
            let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
            assert!(
                left.is_empty(),
                "{left:?} is left behind in {name}: {facts}"
            );
        }
        let stdout = self.scratch.written("stdout");
        let stderr = String::from_utf8_lossy(&self.scratch.written("stderr")).into_owned();
        Output {
            status,
            stdout,
            stderr,
            took,
            facts,
        }
    }
}

/// What came of a call. The methods check one thing each, and fail with
/// everything that is known.
#[derive(Debug)]
pub(crate) struct Output {
    status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
    facts: String,
}

impl Output {
    /// Checks the exit status.
    #[track_caller]
    pub(crate) fn code(self, expected: i32) -> Self {
        assert_eq!(
            self.status.code(),
            Some(expected),
            "exit status of {}",
            self.facts
        );
        self
    }

    /// Checks that it did not end well.
    #[track_caller]
    pub(crate) fn fails(self) -> Self {
        assert!(!self.status.success(), "success of {}", self.facts);
        self
    }

    /// Checks that a signal was the end, and that no core was dumped.
    #[track_caller]
    pub(crate) fn signal(self, expected: nix::sys::signal::Signal) -> Self {
        let signal = self.status.signal();
        assert_eq!(
            signal,
            Some(expected as i32),
            "{expected} as the end of {}",
            self.facts
        );
        assert!(!self.status.core_dumped(), "a core of {}", self.facts);
        self
    }

    /// Checks standard output, byte for byte.
    #[track_caller]
    pub(crate) fn stdout(self, expected: impl AsRef<[u8]>) -> Self {
        let expected = String::from_utf8_lossy(expected.as_ref());
        assert_eq!(
            String::from_utf8_lossy(&self.stdout),
            expected,
            "stdout of {}",
            self.facts
        );
        self
    }

    /// Checks that nothing was said on standard error.
    #[track_caller]
    pub(crate) fn quiet(self) -> Self {
        assert_eq!(self.stderr, "", "stderr of {}", self.facts);
        self
    }

    /// Checks that standard error is one line of dblock's that holds all of
    /// `words`.
    #[track_caller]
    pub(crate) fn one_line(self, words: &[&str]) -> Self {
        let one = self.stderr.ends_with('\n') && self.stderr.lines().count() == 1;
        assert!(
            one && self.stderr.starts_with("dblock: "),
            "not one line: {}",
            self.facts
        );
        self.says(words)
    }

    /// Checks that standard error holds all of `words`.
    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {}", self.facts);
        }
        self
    }

    /// Checks that it took at most this long.
    #[track_caller]
    pub(crate) fn took_at_most(self, limit: Duration) -> Self {
        assert!(self.took <= limit, "longer than {limit:?}: {}", self.facts);
        self
    }

    /// Checks that it took at least this long.
    #[track_caller]
    pub(crate) fn took_at_least(self, limit: Duration) -> Self {
        assert!(self.took >= limit, "shorter than {limit:?}: {}", self.facts);
        self
    }

    /// Returns standard output as text.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        let text = std::str::from_utf8(&self.stdout);
        text.unwrap_or_else(|_| panic!("not UTF-8: {}", self.facts))
    }

    /// Returns standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        let value = serde_json::from_slice(&self.stdout);
        value.unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.facts))
    }
}
