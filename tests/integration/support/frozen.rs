//! A file system that is frozen: who writes to it is stuck in the kernel, and
//! SIGKILL ends nobody before it is thawed. Until then sync(2) is stuck as
//! well, whoever calls it, so no test takes longer than it must.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout};

use nix::unistd::geteuid;

use super::janitor;
use super::process::Process;
use super::wait;

/// Makes a small file system in a file, mounts and freezes it, and thaws it
/// when it is told to, or when its standard input ends.
const SERVE: &str = r#"
PATH=$PATH:/usr/sbin:/sbin
place=$(mktemp -d "$1/dblock-frozen-XXXXXX") || exit 1
echo "$place"
exec 2>"$place/log"
mkdir "$place/mounted"
truncate -s 2M "$place/image" && mkfs.ext4 -q -F "$place/image" >&2 &&
    mount -o loop "$place/image" "$place/mounted" && fsfreeze -f "$place/mounted" &&
    echo frozen || echo failed
while read -r order; do
    fsfreeze -u "$place/mounted"
    echo thawed
done
fsfreeze -u "$place/mounted"
# Who was stuck in it needs a moment to die.
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    mountpoint -q "$place/mounted" || break
    umount "$place/mounted" || sleep 0.2
done
mountpoint -q "$place/mounted" && umount -l "$place/mounted"
rm -rf "$place"
"#;

/// A frozen file system. However the test ends, it is thawed and removed.
#[derive(Debug)]
pub(crate) struct Frozen {
    shell: Child,
    answers: BufReader<ChildStdout>,
    place: PathBuf,
}

impl Frozen {
    /// Freezes a new file system, if this machine lets us.
    pub(crate) fn new() -> Result<Self, String> {
        if !geteuid().is_root() {
            return Err("only root can freeze a file system".to_owned());
        }
        let temporary = env::temp_dir();
        let mut shell = janitor::start(SERVE, &[temporary.to_str().expect("the path is UTF-8")]);
        let stdout = shell.stdout.take().expect("stdout is a pipe");
        let mut frozen = Self {
            shell,
            answers: BufReader::new(stdout),
            place: PathBuf::new(),
        };
        frozen.place = PathBuf::from(frozen.answer());
        match frozen.answer().as_str() {
            "frozen" => Ok(frozen),
            _ => {
                let log = fs::read_to_string(frozen.place.join("log"));
                Err(format!("no file system can be frozen here: {log:?}"))
            }
        }
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        read.expect("the janitor answers");
        line.trim().to_owned()
    }

    /// Returns a file to write to which is to be stuck.
    pub(crate) fn file(&self) -> PathBuf {
        self.place.join("mounted/file")
    }

    /// Lets everybody go on who is stuck.
    #[track_caller]
    pub(crate) fn thaw(&mut self) {
        let orders = self.shell.stdin.as_mut().expect("stdin is a pipe");
        writeln!(orders, "thaw").expect("the janitor lives as long as the tests");
        assert_eq!(self.answer(), "thawed");
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().ok();
    }
}

/// Waits until the process is stuck in the kernel.
#[track_caller]
pub(crate) fn wait_until_stuck(process: Process) {
    let path = Path::new("/proc").join(process.pid().to_string());
    wait::until("the process to be stuck", || {
        // It is in this state for a moment also whenever it waits for a disk.
        let wait = fs::read_to_string(path.join("wchan")).unwrap_or_default();
        let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
        if stat.contains(") D ") && wait.contains("rwsem") {
            Ok(())
        } else {
            Err(format!("{stat} in {wait}"))
        }
    });
}
