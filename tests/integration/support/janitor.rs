//! Ends what a test started when the test process itself ends, in whatever
//! way: a shell holds the other end of a pipe, and the kernel closes the pipe
//! also when the test process is killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

use tempfile::TempDir;

/// Makes the directory for all files of the tests, and reads `add PID` and
/// `gone PID`. At the end it kills what was not gone, by process groups, and
/// removes the files, after a second in which a killed dblock's job dies too.
const CLEAN_UP: &str = r#"
base=$(mktemp -d "$1/dblock-tests-XXXXXX") || exit 1
echo "$base"
pids=' '
while read -r order pid; do
    case $order in
        add) pids="$pids$pid " ;;
        gone) case $pids in *" $pid "*) pids="${pids%% $pid *} ${pids#* $pid }" ;; esac ;;
    esac
done
for pid in $pids; do kill -KILL "-$pid"; done
case $pids in *[0-9]*) sleep 1 ;; esac
rm -rf "$base"
"#;

#[derive(Debug)]
struct Janitor {
    shell: Mutex<Child>,
    base: PathBuf,
}

static JANITOR: LazyLock<Janitor> = LazyLock::new(|| {
    let temporary = std::env::temp_dir();
    let mut shell = start(CLEAN_UP, &[temporary.to_str().expect("the path is UTF-8")]);
    let mut answers = BufReader::new(shell.stdout.take().expect("stdout is a pipe"));
    let mut base = String::new();
    answers.read_line(&mut base).expect("the janitor answers");
    Janitor {
        shell: Mutex::new(shell),
        base: base.trim().into(),
    }
});

/// Starts `/bin/sh` with a script that works until its standard input ends.
///
/// The shell has a process group of its own and ignores what a terminal sends,
/// so that whatever ends the tests does not end it as well.
pub(crate) fn start(script: &str, arguments: &[&str]) -> Child {
    let deaf = "trap '' HUP INT QUIT TERM PIPE";
    Command::new("/bin/sh")
        .args(["-c", &format!("{deaf}\n{script}"), "janitor"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("/bin/sh can be started")
}

/// Returns a new directory, which is gone when it is dropped or when the test
/// process ends.
pub(crate) fn directory() -> TempDir {
    TempDir::new_in(&JANITOR.base).expect("a directory for a test")
}

/// Has a child and its process group killed if the test process ends before [`forget`] is called.
pub(crate) fn watch(child: &Child) {
    tell("add", child.id());
}

/// Takes back [`watch`], once the child has been reaped.
pub(crate) fn forget(child: &Child) {
    tell("gone", child.id());
}

fn tell(order: &str, pid: u32) {
    let mut shell = JANITOR.shell.lock().unwrap_or_else(PoisonError::into_inner);
    let orders = shell.stdin.as_mut().expect("stdin is a pipe");
    writeln!(orders, "{order} {pid}").expect("the janitor lives as long as the tests");
}
