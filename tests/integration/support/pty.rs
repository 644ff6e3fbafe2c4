//! A terminal with somebody who types: a pseudo-terminal whose session leader
//! is an interactive shell, or any other program.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, tcgetpgrp};

use super::dblock::Output;
use super::place::Place;
use super::process::Process;
use super::running::Running;
use super::wait;

/// What the shell shows when it waits for a command.
const PROMPT: &str = "READY> ";

/// Keys.
pub(crate) const CTRL_C: u8 = 0x03;
pub(crate) const CTRL_BACKSLASH: u8 = 0x1c;
pub(crate) const CTRL_Z: u8 = 0x1a;
pub(crate) const CTRL_D: u8 = 0x04;

/// A terminal and its session.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// The side of who types and reads. Everybody else hangs up when it goes.
    master: Option<File>,
    path: PathBuf,
    session: Option<Running>,
    leader: Process,
    shown: String,
    /// How much of `shown` has been expected already.
    read: usize,
}

/// An interactive bash that keeps its hands off the home directory, and does
/// not edit what is typed, so that the terminal shows each key as it is.
pub(crate) const BASH: &str = "bash --norc --noprofile --noediting +o history -i";

/// Debian's plain shell, interactive.
pub(crate) const DASH: &str = "dash -i";

impl Terminal {
    /// Opens a terminal with a shell in it that may call `dblock`, and waits
    /// for its prompt.
    #[track_caller]
    pub(crate) fn with(place: &Place<'_>, shell: &str) -> Self {
        let mut terminal = Self::of(place, shell);
        terminal.prompt();
        terminal
    }

    /// Opens a terminal with a program that is the leader of its session, as
    /// the first process of a container is.
    #[track_caller]
    pub(crate) fn of(place: &Place<'_>, command: &str) -> Self {
        // Closed in every program that any test starts meanwhile: a terminal
        // that somebody has open on this side never hangs up.
        let master =
            posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
                .expect("a terminal");
        grantpt(&master).expect("the terminal is ours");
        unlockpt(&master).expect("the terminal is ours");
        let path = PathBuf::from(ptsname_r(&master).expect("the terminal has a name"));
        // Until the program has opened it, so that nobody sees it hung up.
        let slave = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NOCTTY.bits())
            .open(&path)
            .expect("the terminal can be opened");
        let master = File::from(OwnedFd::from(master));

        // setsid starts the program in a session of its own, with the terminal
        // as its controlling one, and passes on how it ended.
        let leader = place.file(&format!("leader-{}", path.display()).replace('/', "-"));
        let call = place
            .shell(
                "exec setsid --ctty --wait sh -c 'echo $$ >\"$LEADER\"; unset LEADER; \
                 eval \"exec $LEADER_IS\"' <\"$TERMINAL\" >\"$TERMINAL\" 2>&1",
            )
            .env("TERMINAL", &path)
            .env("LEADER", &leader)
            .env("LEADER_IS", command)
            .env("PS1", PROMPT)
            .env("TERM", "dumb")
            .env("LC_ALL", "C");
        let session = call.start();
        let leader = wait::until("the session to begin", || {
            let line = fs::read_to_string(&leader).map_err(|error| error.to_string())?;
            let whole = line.strip_suffix('\n').ok_or("an unfinished line")?;
            Ok(Process::printed(whole))
        });
        drop(slave);
        Self {
            master: Some(master),
            path,
            session: Some(session),
            leader,
            shown: String::new(),
            read: 0,
        }
    }

    /// Returns the leader of the session.
    pub(crate) fn leader(&self) -> Process {
        self.leader
    }

    fn master(&self) -> &File {
        self.master.as_ref().expect("nobody has hung up")
    }

    /// Types a line.
    #[track_caller]
    pub(crate) fn line(&mut self, text: &str) {
        self.input(format!("{text}\n").as_bytes());
    }

    /// Hits a key.
    #[track_caller]
    pub(crate) fn key(&mut self, key: u8) {
        self.input(&[key]);
    }

    #[track_caller]
    fn input(&mut self, bytes: &[u8]) {
        self.master()
            .write_all(bytes)
            .expect("the terminal takes what is typed");
    }

    /// Takes in what the terminal shows by now.
    fn look(&mut self) {
        let Some(mut master) = self.master.as_ref() else {
            return;
        };
        let mut buffer = [0; 4096];
        loop {
            match master.read(&mut buffer) {
                Ok(length) if length > 0 => {
                    self.shown
                        .push_str(&String::from_utf8_lossy(&buffer[..length]));
                }
                // EAGAIN: nothing new. EIO: nobody has the terminal open.
                _ => return,
            }
        }
    }

    /// Waits until the terminal shows a text after what was waited for last,
    /// and returns what is in between.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) -> String {
        self.expect_within(wait::LIMIT, text)
    }

    #[track_caller]
    pub(crate) fn expect_within(&mut self, limit: Duration, text: &str) -> String {
        wait::within(limit, &format!("{text:?} on the terminal"), || {
            self.look();
            match self.shown[self.read..].find(text) {
                Some(at) => {
                    let begin = self.read;
                    self.read += at + text.len();
                    Ok(self.shown[begin..begin + at].to_owned())
                }
                None => Err(self.facts()),
            }
        })
    }

    /// Waits for the shell's prompt, and returns what is shown before it.
    #[track_caller]
    pub(crate) fn prompt(&mut self) -> String {
        self.expect(PROMPT)
    }

    /// Types a command, waits until it is done, and returns what it showed.
    #[track_caller]
    pub(crate) fn command(&mut self, line: &str) -> String {
        self.line(line);
        self.expect("\n");
        self.prompt().replace('\r', "")
    }

    /// Returns the status of the last command, as the shell shows it.
    #[track_caller]
    pub(crate) fn status(&mut self) -> i32 {
        let shown = self.command("echo \"<$?>\"");
        let status = shown.split_once('<').and_then(|(_, rest)| {
            let (number, _) = rest.split_once('>')?;
            number.parse().ok()
        });
        status.unwrap_or_else(|| panic!("no status in {shown:?}: {}", self.facts()))
    }

    /// Returns the process group in the terminal's foreground.
    #[track_caller]
    pub(crate) fn foreground(&self) -> i32 {
        tcgetpgrp(self.master().as_fd())
            .expect("the terminal has a foreground")
            .as_raw()
    }

    /// Waits until the process's group is in the foreground.
    #[track_caller]
    pub(crate) fn wait_for_foreground(&mut self, process: Process) {
        wait::until("the process to be in the foreground", || {
            self.look();
            let foreground = self.foreground();
            if process.group() == Some(foreground) {
                Ok(())
            } else {
                Err(format!("{foreground} is: {}", self.facts()))
            }
        });
    }

    /// Fails unless the shell's group is in the foreground.
    #[track_caller]
    pub(crate) fn assert_shell_in_foreground(&self) {
        let group = self.leader.group();
        assert_eq!(Some(self.foreground()), group, "{}", self.facts());
    }

    /// Makes the window another size.
    #[track_caller]
    pub(crate) fn resize(&self, columns: u16) {
        let stty = std::process::Command::new("stty")
            .arg("-F")
            .arg(&self.path)
            .args(["cols", &columns.to_string()])
            .status();
        assert!(stty.expect("stty can be started").success());
    }

    /// Switches the line off: what the kernel does when a connection is lost
    /// or a terminal's window is closed.
    pub(crate) fn hang_up(&mut self) {
        self.look();
        drop(self.master.take());
    }

    /// Returns all that is known, to be shown by a failure.
    pub(crate) fn facts(&self) -> String {
        let processes = members(self.leader.pid()).into_iter().map(describe);
        let processes: Vec<_> = processes.collect();
        format!(
            "--- shown\n{}\n--- session\n{}",
            self.shown,
            processes.join("\n")
        )
    }

    /// Waits for the end of the session's leader.
    #[track_caller]
    pub(crate) fn end(mut self) -> Output {
        let session = self.session.take().expect("it has not ended");
        wait::until("the session to end", || {
            self.look();
            if session.process().is_alive() {
                Err(self.facts())
            } else {
                Ok(())
            }
        });
        session.wait()
    }

    /// Leaves the shell.
    #[track_caller]
    pub(crate) fn exit(mut self) {
        self.line("exit 0");
        self.end().code(0);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        for pid in members(self.leader.pid()) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }
}

/// Returns the processes of a session.
fn members(session: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("the kernel shows processes");
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| session_of(*pid) == Some(session))
        .collect()
}

/// Returns the session of a process.
pub(crate) fn session_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(3)?.parse().ok()
}

fn describe(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let stat: Vec<_> = stat.split_whitespace().take(8).collect();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    format!("{} {}", stat.join(" "), command.escape_debug())
}
