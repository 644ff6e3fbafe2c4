//! A time of day that a test steps while programs run under it, by
//! libfaketime. `tests/run` installs it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::dblock::Dblock;
use super::janitor;
use super::jobs::quoted;

/// Prints the environment that puts a program under a false clock, and keeps
/// what it needs until its standard input ends.
///
/// libfaketime leaves a semaphore and a piece of shared memory behind for each
/// process that is killed. Those that `faketime` itself makes are shared by
/// all, and it removes them at its end.
const KEEP: &str = r#"
exec faketime -f +0 sh -c 'echo "$LD_PRELOAD"; echo "$FAKETIME_SHARED"; unset LD_PRELOAD; exec cat >&2'
"#;

/// Returns the offset, or a smaller one on a host that was started lately:
/// libfaketime moves the absolute timers of a program along with its clock
/// (timerfd_settime(2)), and none can lie before boot.
#[track_caller]
pub(crate) fn within_uptime(offset_ms: i64) -> i64 {
    let uptime = fs::read_to_string("/proc/uptime").expect("the uptime can be read");
    let seconds = uptime.split('.').next().and_then(|text| text.parse().ok());
    let most: i64 = seconds.map_or(0, |seconds: i64| seconds * 1000 / 2);
    offset_ms.clamp(-most, most)
}

/// A clock that shows another time of day than this host's, by an offset.
#[derive(Debug)]
pub(crate) struct FalseClock {
    keeper: Child,
    files: TempDir,
    library: String,
    shared: String,
}

impl FalseClock {
    /// Returns a clock that is right so far.
    #[track_caller]
    pub(crate) fn new() -> Self {
        let mut keeper = janitor::start(KEEP, &[]);
        let mut answers = BufReader::new(keeper.stdout.take().expect("stdout is a pipe"));
        let mut answer = || {
            let mut line = String::new();
            answers.read_line(&mut line).expect("faketime answers");
            line.trim().to_owned()
        };
        let (library, shared) = (answer(), answer());
        assert!(
            !shared.is_empty(),
            "faketime is not installed; tests/run installs what the tests need"
        );
        let clock = Self {
            keeper,
            files: janitor::directory(),
            library,
            shared,
        };
        clock.set_offset_ms(0);
        clock
    }

    fn file(&self) -> PathBuf {
        self.files.path().join("offset")
    }

    /// Steps the clock to this offset from the host's.
    #[track_caller]
    pub(crate) fn set_offset_ms(&self, offset: i64) {
        let seconds = format!(
            "{}{}.{:03}\n",
            if offset < 0 { '-' } else { '+' },
            offset.abs() / 1000,
            offset.abs() % 1000
        );
        // In one step, as it is read whenever somebody asks for the time.
        let new = self.files.path().join("new");
        fs::write(&new, seconds).expect("the offset can be written");
        fs::rename(&new, self.file()).expect("the offset can be put in place");
    }

    /// Steps the clock to a moment, in seconds since 1970 UTC.
    #[track_caller]
    pub(crate) fn set_to(&self, moment: i64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now: Duration| now.as_millis());
        self.set_offset_ms(moment * 1000 - i64::try_from(now).expect("a time fits"));
    }

    /// Returns the environment of a program under this clock.
    ///
    /// Left alone, libfaketime also makes `CLOCK_MONOTONIC` and
    /// `CLOCK_BOOTTIME` false, which nothing can do to them on a real host.
    fn environment(&self) -> [(&'static str, String); 5] {
        let file = self.file();
        [
            ("LD_PRELOAD", self.library.clone()),
            ("FAKETIME_SHARED", self.shared.clone()),
            (
                "FAKETIME_TIMESTAMP_FILE",
                file.to_str().expect("the path is UTF-8").to_owned(),
            ),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Makes a call on a host whose time of day is this clock's.
    pub(crate) fn on_the_host_of(&self, call: Dblock) -> Dblock {
        let variables = self.environment().into_iter();
        variables.fold(call, |call, (name, value)| call.env(name, value))
    }

    /// Returns a program that is the given one under this clock, in a time
    /// zone.
    #[track_caller]
    pub(crate) fn wrap(&self, program: &Path, zone: &str) -> PathBuf {
        let mut script = format!("#!/bin/sh\nexport TZ={}", quoted(zone));
        for (name, value) in self.environment() {
            script.push_str(&format!(" {name}={}", quoted(&value)));
        }
        let program = quoted(program.to_str().expect("the path is UTF-8"));
        script.push_str(&format!("\nexec {program} \"$@\"\n"));
        let path = self.files.path().join("program");
        fs::write(&path, script).expect("the program can be written");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, mode).expect("the mode can be set");
        path
    }
}

impl Drop for FalseClock {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().ok();
    }
}
