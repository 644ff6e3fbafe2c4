//! In a terminal: whoever types at a job under dblock sees no difference to
//! the job alone, and what surrounds dblock sees none either.

mod pipeline;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGKILL, SIGTERM};

use crate::support::family::Family;
use crate::support::jobs::{perl, quoted};
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::pty::{BASH, CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, DASH, Terminal};
use crate::support::wait;

/// A job that ends by a signal only.
const SLEEP: &str = "exec sleep 100";

/// A job that wants a line from the keyboard.
const READ: &str = "read x; echo got:$x";

/// Waits for the file that is its first argument, and exits with 6; meanwhile
/// it adds to the file that is its second one, if there is one.
///
/// Not a loop of the shell's: a shell cannot be stopped while a child of it,
/// stopped itself, has not become another program yet.
const WAIT: &str = r#"
open(my $out, '>>', $ARGV[1] // '/dev/null') or die;
until (-e $ARGV[0]) {
    syswrite($out, 'x');
    select(undef, undef, undef, 0.01);
}
exit 6;
"#;

/// Shells that differ in how they look after jobs.
const SHELLS: [&str; 2] = [BASH, DASH];

/// A terminal and the lock that is used in it.
struct Desk {
    // In this order, so that the session goes before the files.
    terminal: Terminal,
    family: Family,
    place: Place<'static>,
    scripts: usize,
}

/// A job that has begun.
#[derive(Clone, Copy)]
struct Begun {
    dblock: Process,
    job: Process,
}

impl Desk {
    #[track_caller]
    fn new(shell: &str) -> Self {
        Self::at(Place::embedded(), shell)
    }

    #[track_caller]
    fn at(place: Place<'static>, shell: &str) -> Self {
        Self {
            terminal: Terminal::with(&place, shell),
            family: Family::new(),
            place,
            scripts: 0,
        }
    }

    /// Makes a script, because what is typed is shown on the terminal, and
    /// would be taken for what the script says.
    #[track_caller]
    fn script(&mut self, text: &str) -> PathBuf {
        self.scripts += 1;
        let path = self.place.file(&format!("script-{}", self.scripts));
        fs::write(&path, text).expect("the script can be written");
        path
    }

    /// Returns the command line of a job that first shows its process id. The
    /// job dumps no core, which would be found as left behind.
    #[track_caller]
    fn run(&mut self, options: &str, job: &str) -> String {
        let job = self.script(&format!("ulimit -c 0; echo \"job:$$:\"; {job}"));
        format!(
            "env {} dblock run --key k {options} -- sh {}",
            self.family.mark(),
            job.display()
        )
    }

    /// Waits until a job has shown its process id, and until it has the
    /// terminal unless the shell is to keep it.
    #[track_caller]
    fn begun(&mut self) -> Begun {
        self.terminal.expect("job:");
        let job = Process::printed(&self.terminal.expect(":"));
        Begun {
            dblock: self.dblock(),
            job,
        }
    }

    #[track_caller]
    fn dblock(&self) -> Process {
        let pid = i32::try_from(self.place.row("k").pid).expect("a pid fits");
        Process::of(pid).expect("dblock is there")
    }

    /// Types the command of a job and waits until it has begun.
    #[track_caller]
    fn start(&mut self, options: &str, job: &str) -> Begun {
        let run = self.run(options, job);
        self.terminal.line(&run);
        self.begun()
    }

    /// Hits Ctrl-Z and waits until the shell is back and all is stopped.
    #[track_caller]
    fn suspend(&mut self, begun: Begun) {
        self.terminal.key(CTRL_Z);
        self.terminal.prompt();
        begun.job.wait_until_stopped();
        begun.dblock.wait_until_stopped();
        self.terminal.assert_shell_in_foreground();
    }

    /// Waits until a process is no longer stopped.
    #[track_caller]
    fn wait_until_it_goes_on(&mut self, process: Process) {
        wait::until("the job to go on", || match state_of(process) {
            Some('T') => Err(format!("{process:?} is stopped: {}", self.terminal.facts())),
            Some(_) => Ok(()),
            None => panic!("{process:?} is gone: {}", self.terminal.facts()),
        });
    }

    /// Waits for the prompt, checks the status, and that nothing is left: no
    /// row, no process, and the terminal is the shell's.
    #[track_caller]
    fn over(&mut self, status: i32) -> String {
        let shown = self.terminal.prompt();
        self.left(status);
        shown
    }

    /// Checks what [`Desk::over`] checks after the prompt.
    #[track_caller]
    fn left(&mut self, status: i32) {
        self.terminal.assert_shell_in_foreground();
        let found = self.terminal.status();
        assert_eq!(found, status, "status: {}", self.terminal.facts());
        self.family.vanishes();
        self.place.assert_free("k");
        self.terminal.assert_shell_in_foreground();
    }
}

/// Returns the command of a job that runs [`WAIT`].
fn waiting(files: &[&PathBuf]) -> String {
    let files = files.iter().map(|file| file.to_str().expect("UTF-8"));
    let files: Vec<_> = files.collect();
    format!("exec {}", perl(WAIT, &files))
}

/// Returns the state that the kernel shows for a process.
fn state_of(process: Process) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.chars().next()
}

#[test]
fn b1_a_job_reads_what_is_typed() {
    for shell in SHELLS {
        let mut desk = Desk::new(shell);
        let begun = desk.start("", READ);
        desk.terminal.wait_for_foreground(begun.job);
        desk.terminal.line("hello");
        desk.terminal.expect("got:hello");
        desk.over(0);
        desk.terminal.exit();
    }
}

#[test]
fn b1_a_job_reads_to_the_end_of_what_is_typed() {
    let mut desk = Desk::new(BASH);
    desk.start("", "cat; echo end; exit 4");
    desk.terminal.line("word");
    // Once as it is typed, and once from the job.
    desk.terminal.expect("word");
    desk.terminal.expect("word");
    desk.terminal.key(CTRL_D);
    desk.terminal.expect("end");
    desk.over(4);
    desk.terminal.exit();
}

#[test]
fn b1_the_terminal_is_set_as_before() {
    let mut desk = Desk::new(BASH);
    let before = desk.terminal.command("stty -a");
    assert!(before.contains("isig"), "{before}");
    let inside = desk.terminal.command("dblock run --key k -- stty -a");
    assert_eq!(inside, before, "{}", desk.terminal.facts());
    desk.left(0);
    assert_eq!(desk.terminal.command("stty -a"), before);
    desk.terminal.command("dblock run --key k -- true");
    desk.left(0);
    assert_eq!(desk.terminal.command("stty -a"), before);

    // What a job sets is as it would be without dblock: it stays.
    desk.terminal.command("dblock run --key k -- stty -echoctl");
    desk.left(0);
    let set = desk.terminal.command("stty -a");
    assert!(set.contains("-echoctl"), "{}", desk.terminal.facts());
    desk.terminal.command("dblock run --key k -- stty sane");
    desk.left(0);
    let sane = desk.terminal.command("stty -a");
    assert!(!sane.contains("-echoctl"), "{}", desk.terminal.facts());
    desk.terminal.exit();
}

/// Waits until the shell that is the job has given the terminal to its own.
#[track_caller]
fn wait_for_sleep_in_the_foreground(terminal: &Terminal) {
    wait::until("the inner job to be in the foreground", || {
        let foreground = terminal.foreground();
        match fs::read_to_string(format!("/proc/{foreground}/comm")).as_deref() {
            Ok("sleep\n") => Ok(()),
            other => Err(format!("{other:?} {}", terminal.facts())),
        }
    });
}

#[test]
fn b1_a_shell_inside_of_the_job_controls_jobs() {
    const INNER: &str = "INNER> ";
    let mut desk = Desk::new(BASH);
    let begun = desk.start("", &format!("exec env PS1='{INNER}' {BASH}"));
    let notices = desk.terminal.expect(INNER);
    assert!(!notices.contains("no job control"), "{notices}");
    desk.terminal.wait_for_foreground(begun.job);

    desk.terminal.line("sleep 100 &");
    desk.terminal.expect("[1]");
    desk.terminal.expect(INNER);
    desk.terminal.line("jobs");
    desk.terminal.expect("Running");
    desk.terminal.expect(INNER);
    desk.terminal.line("kill %1; wait");
    desk.terminal.expect("Terminated");
    desk.terminal.expect(INNER);
    // Not `fg`, after which the shell might let it go on once more when it
    // has been stopped already.
    desk.terminal.line("sleep 101");
    wait_for_sleep_in_the_foreground(&desk.terminal);
    desk.terminal.key(CTRL_Z);
    desk.terminal.expect("Stopped");
    desk.terminal.expect(INNER);
    // The outer one has nothing to do with it.
    assert_ne!(state_of(begun.dblock), Some('T'));
    desk.terminal.wait_for_foreground(begun.job);
    desk.terminal.line("fg");
    wait_for_sleep_in_the_foreground(&desk.terminal);
    desk.terminal.key(CTRL_C);
    desk.terminal.expect(INNER);
    desk.terminal.line("exit 3");
    desk.over(3);
    desk.terminal.exit();
}

#[test]
fn b1_ctrl_c_ends_the_job() {
    for shell in SHELLS {
        let mut desk = Desk::new(shell);
        let begun = desk.start("", SLEEP);
        desk.terminal.wait_for_foreground(begun.job);
        desk.terminal.key(CTRL_C);
        desk.over(130);
        desk.terminal.exit();
    }
}

#[test]
fn b1_ctrl_c_that_the_job_catches_ends_nothing_else() {
    let mut desk = Desk::new(BASH);
    let run = desk.run(
        "",
        "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done",
    );
    let script = desk.script(&format!("{run}\necho \"after:$?:\""));
    desk.terminal.line(&format!("bash {}", script.display()));
    desk.begun();
    desk.terminal.expect("ready");
    desk.terminal.key(CTRL_C);
    desk.terminal.expect("caught");
    desk.terminal.expect("after:5:");
    desk.over(0);
    desk.terminal.exit();
}

#[test]
fn b1_ctrl_c_ends_a_surrounding_loop() {
    for shell in SHELLS {
        let mut desk = Desk::new(shell);
        let run = desk.run("", SLEEP);
        desk.terminal.line(&format!("while :; do {run}; done"));
        let begun = desk.begun();
        desk.terminal.wait_for_foreground(begun.job);
        desk.terminal.key(CTRL_C);
        desk.over(130);
        desk.terminal.exit();
    }
}

/// Hits a key while a script around dblock waits for it, and checks that the
/// script ends of it, too.
#[track_caller]
fn ends_a_surrounding_script(key: u8, status: i32) {
    for around in ["bash", "sh"] {
        let mut desk = Desk::new(BASH);
        let run = desk.run("", SLEEP);
        let script = desk.script(&format!("ulimit -c 0; {run}\necho not\"\"reached"));
        let line = format!("{around} {}", script.display());
        desk.terminal.line(&line);
        let begun = desk.begun();
        desk.terminal.wait_for_foreground(begun.job);
        desk.terminal.key(key);
        let shown = desk.over(status);
        assert!(!shown.contains("notreached"), "{around}: {shown}");
        desk.terminal.exit();
    }
}

#[test]
fn b1_ctrl_c_ends_a_surrounding_script() {
    ends_a_surrounding_script(CTRL_C, 130);
}

#[test]
fn b1_ctrl_c_ends_a_surrounding_command_of_bash() {
    let mut desk = Desk::new(BASH);
    let run = desk.run("", SLEEP);
    let command = quoted(&format!("{run}; echo not\"\"reached"));
    desk.terminal.line(&format!("bash -c {command}"));
    let begun = desk.begun();
    desk.terminal.wait_for_foreground(begun.job);
    desk.terminal.key(CTRL_C);
    let shown = desk.over(130);
    assert!(!shown.contains("notreached"), "{shown}");
    desk.terminal.exit();
}

#[test]
fn b1_ctrl_backslash_ends_the_job_without_a_core_of_dblock() {
    let mut desk = Desk::new(BASH);
    // Only dblock could dump one, if the machine has it at all.
    desk.terminal
        .command("ulimit -S -c $(ulimit -H -c) 2>/dev/null");
    let begun = desk.start("", SLEEP);
    desk.terminal.wait_for_foreground(begun.job);
    desk.terminal.key(CTRL_BACKSLASH);
    let shown = desk.over(131);
    assert!(!shown.contains("core"), "{shown}");
    desk.terminal.exit();
}

#[test]
fn b1_ctrl_z_returns_the_prompt_and_fg_goes_on() {
    for shell in SHELLS {
        let mut desk = Desk::new(shell);
        // Nobody renews this lease by itself during the test.
        let go = desk.place.file("go");
        let job = waiting(&[&go]);
        let begun = desk.start("--ttl 10m", &job);
        for _ in 0..2 {
            desk.terminal.wait_for_foreground(begun.job);
            desk.suspend(begun);
            let before = desk.place.row("k");
            desk.terminal.line("fg");
            desk.wait_until_it_goes_on(begun.job);
            let now = desk.place.row("k");
            assert!(
                now.renewals > before.renewals,
                "the job goes on with a lease that nobody proved: {before:?} {now:?}"
            );
        }
        desk.terminal.wait_for_foreground(begun.job);
        fs::write(&go, "").expect("the file can be made");
        desk.over(6);
        desk.terminal.exit();
    }
}

#[test]
fn b1_a_job_reads_what_is_typed_after_ctrl_z() {
    let mut desk = Desk::new(BASH);
    let begun = desk.start("", READ);
    desk.terminal.wait_for_foreground(begun.job);
    desk.suspend(begun);
    desk.terminal.line("fg");
    desk.wait_until_it_goes_on(begun.job);
    desk.terminal.wait_for_foreground(begun.job);
    desk.terminal.line("hello");
    desk.terminal.expect("got:hello");
    desk.over(0);
    desk.terminal.exit();
}

#[test]
fn b1_bg_leaves_the_foreground_to_the_shell() {
    for shell in SHELLS {
        let mut desk = Desk::new(shell);
        let go = desk.place.file("go");
        let begun = desk.start("--ttl 2s", &waiting(&[&go]));
        desk.terminal.wait_for_foreground(begun.job);
        desk.suspend(begun);
        desk.terminal.command("bg");
        desk.wait_until_it_goes_on(begun.job);
        let before = desk.place.row("k");
        // Longer than the lease, and the terminal stays with the shell.
        wait::until("renewals in the background", || {
            desk.terminal.assert_shell_in_foreground();
            let now = desk.place.row("k");
            if now.expire_at > before.expire_at + 2000 {
                Ok(())
            } else {
                Err(format!("{now:?} {}", desk.terminal.facts()))
            }
        });
        fs::write(&go, "").expect("the file can be made");
        wait::until("the end of dblock", || {
            desk.terminal.assert_shell_in_foreground();
            if begun.dblock.is_alive() {
                Err(desk.terminal.facts())
            } else {
                Ok(())
            }
        });
        desk.terminal.line("wait %1");
        desk.over(6);
        desk.terminal.exit();
    }
}

#[test]
fn b1_a_lease_that_ends_behind_ctrl_z_kills_the_job_unresumed() {
    let mut desk = Desk::new(BASH);
    let written = desk.place.file("written");
    // One that could write on after TERM, if it were continued for that.
    let job = waiting(&[&desk.place.file("never"), &written]);
    let begun = desk.start("--ttl 2s", &format!("trap '' TERM; {job}"));
    desk.terminal.wait_for_foreground(begun.job);
    wait::until("the job to write", || match fs::metadata(&written) {
        Ok(file) if file.len() > 0 => Ok(()),
        other => Err(format!("{other:?} {}", desk.terminal.facts())),
    });
    desk.suspend(begun);
    let length = || fs::metadata(&written).expect("the job has written").len();
    let before = length();
    wait::until("the lease to end", || match desk.place.left_ms("k") {
        left if left < 0 => Ok(()),
        left => Err(format!("{left} ms left")),
    });
    // Before anybody says `fg`, as the next one may have the lock now.
    desk.family.assert_dead_job(begun);
    desk.terminal.line("fg");
    desk.over(76);
    assert_eq!(length(), before, "the job went on without a lease");
    desk.terminal.exit();
}

trait DeadJob {
    fn assert_dead_job(&self, begun: Begun);
}

impl DeadJob for Family {
    /// Fails if the job is alive.
    #[track_caller]
    fn assert_dead_job(&self, begun: Begun) {
        assert!(!begun.job.is_alive(), "alive: {:?}", self.all());
        self.assert_dead();
    }
}

#[test]
fn b1_in_the_background_a_job_that_reads_stops_until_fg() {
    for shell in SHELLS {
        let mut desk = Desk::new(shell);
        let run = desk.run("", READ);
        desk.terminal.line(&format!("{run} &"));
        let begun = desk.begun();
        begun.job.wait_until_stopped();
        begun.dblock.wait_until_stopped();
        desk.terminal.assert_shell_in_foreground();
        wait::until("the shell to show that it is stopped", || {
            let shown = desk.terminal.command("jobs");
            if shown.contains("Stopped") {
                Ok(())
            } else {
                Err(desk.terminal.facts())
            }
        });
        desk.terminal.line("fg");
        desk.terminal.wait_for_foreground(begun.job);
        desk.terminal.line("hello");
        desk.terminal.expect("got:hello");
        desk.over(0);
        desk.terminal.exit();
    }
}

#[test]
fn b1_in_the_background_the_terminal_stays_with_the_shell() {
    let mut desk = Desk::new(BASH);
    let go = desk.place.file("go");
    let run = desk.run("", &waiting(&[&go]));
    desk.terminal.line(&format!("{run} &"));
    let begun = desk.begun();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        desk.terminal.assert_shell_in_foreground();
        desk.terminal.command(":");
    }
    assert!(begun.job.is_alive());
    fs::write(&go, "").expect("the file can be made");
    desk.terminal.line("wait %1");
    desk.over(6);
    desk.terminal.exit();
}

/// A shell that takes the terminal for itself must not stop dblock.
#[track_caller]
fn interactive_shell_in_the_job(command: &str) {
    let mut desk = Desk::new(BASH);
    desk.terminal.command("stty tostop");
    let mark = desk.family.mark().to_owned();
    desk.terminal.line(&format!(
        "env {mark} dblock run --verbose --key k --ttl 2s -- bash --norc -ic {}",
        quoted(command)
    ));
    let first = wait::until("the grant", || {
        let rows = desk.place.rows("k");
        rows.into_iter().next().ok_or_else(|| desk.terminal.facts())
    });
    // Twice the lease: nothing but renewals could keep it.
    wait::until("renewals", || {
        let rows = desk.place.rows("k");
        match rows.first() {
            Some(now) if now.expire_at > first.expire_at + 2500 => Ok(()),
            _ => Err(format!("{rows:?} {}", desk.terminal.facts())),
        }
    });
    desk.over(0);
    desk.terminal.command("dblock run --key k -- stty -tostop");
    desk.left(0);
    desk.terminal.exit();
}

#[test]
fn b2_an_interactive_shell_in_the_job_does_not_stop_dblock() {
    interactive_shell_in_the_job("sleep 5");
}

#[test]
fn b2_a_job_of_an_interactive_shell_in_the_job_does_not_stop_dblock() {
    interactive_shell_in_the_job("sleep 5; true");
}

#[test]
fn b1_ctrl_z_stops_a_surrounding_script() {
    for around in ["bash", "sh"] {
        let mut desk = Desk::new(BASH);
        let run = desk.run("", SLEEP);
        let script = desk.script(&format!("{run}\necho af\"\"ter"));
        desk.terminal
            .line(&format!("{around} {}", script.display()));
        let begun = desk.begun();
        desk.terminal.wait_for_foreground(begun.job);
        desk.terminal.key(CTRL_Z);
        desk.terminal.expect("Stopped");
        desk.terminal.prompt();
        desk.terminal.assert_shell_in_foreground();
        begun.job.wait_until_stopped();
        begun.dblock.wait_until_stopped();
        desk.terminal.line("fg");
        desk.wait_until_it_goes_on(begun.job);
        desk.terminal.wait_for_foreground(begun.job);
        desk.terminal.key(CTRL_C);
        let shown = desk.over(130);
        assert!(!shown.contains("after"), "{around}: {shown}");
        desk.terminal.exit();
    }
}

#[test]
fn b1_a_new_size_of_the_window_reaches_the_job() {
    let mut desk = Desk::new(BASH);
    let job = "trap 'echo \"size:$(stty size):\"' WINCH; echo ready; while :; do sleep 0.05; done";
    desk.start("", job);
    desk.terminal.expect("ready");
    for columns in [77, 99] {
        desk.terminal.resize(columns);
        desk.terminal.expect("size:");
        let size = desk.terminal.expect(":");
        assert!(size.ends_with(&format!(" {columns}")), "{size:?}");
    }
    desk.terminal.key(CTRL_C);
    desk.over(130);
    desk.terminal.exit();
}

#[test]
fn b1_a_hang_up_ends_the_job() {
    for shell in SHELLS {
        let mut desk = Desk::new(shell);
        let begun = desk.start("", SLEEP);
        desk.terminal.wait_for_foreground(begun.job);
        desk.terminal.hang_up();
        desk.family.vanishes();
        assert!(!begun.job.is_alive());
        desk.place.assert_free("k");
        desk.terminal.end();
    }
}

#[test]
fn b1_a_hang_up_ends_a_stopped_job() {
    let mut desk = Desk::new(BASH);
    let begun = desk.start("", SLEEP);
    desk.terminal.wait_for_foreground(begun.job);
    desk.suspend(begun);
    desk.terminal.hang_up();
    desk.family.vanishes();
    desk.place.assert_free("k");
    desk.terminal.end();
}

/// As the program that a terminal's window or a login over the network was
/// opened for, without any shell around it.
#[test]
fn b1_a_hang_up_ends_a_job_without_a_shell() {
    let (place, family) = (Place::embedded(), Family::new());
    let command = format!(
        "env {} dblock run --key k -- sh -c 'echo job:$$:; exec sleep 100'",
        family.mark()
    );
    let mut terminal = Terminal::of(&place, &command);
    terminal.expect("job:");
    let job = Process::printed(&terminal.expect(":"));
    terminal.wait_for_foreground(job);
    terminal.hang_up();
    family.vanishes();
    place.assert_free("k");
    terminal.end();
}

#[test]
fn b1_ctrl_c_ends_a_job_without_a_shell() {
    let (place, family) = (Place::embedded(), Family::new());
    let command = format!(
        "env {} dblock run --key k -- sh -c 'echo job:$$:; exec sleep 100'",
        family.mark()
    );
    let mut terminal = Terminal::of(&place, &command);
    terminal.expect("job:");
    let job = Process::printed(&terminal.expect(":"));
    terminal.wait_for_foreground(job);
    terminal.key(CTRL_C);
    // setsid(1) shows only how its child has exited.
    terminal.end().fails();
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn b1_a_job_reads_a_single_key() {
    let mut desk = Desk::new(BASH);
    let before = desk.terminal.command("stty -a");
    // What a full-screen program does with the terminal.
    let job = "saved=$(stty -g); stty -icanon -echo; echo ready; \
               key=$(dd bs=1 count=1 2>/dev/null); stty \"$saved\"; echo key:$key";
    desk.start("", job);
    desk.terminal.expect("ready");
    desk.terminal.key(b'x');
    desk.terminal.expect("key:x");
    desk.over(0);
    assert_eq!(desk.terminal.command("stty -a"), before);
    desk.terminal.exit();
}

/// Sends nothing twice: neither what the terminal has already delivered nor
/// what reaches dblock alone.
#[test]
fn a2_in_a_terminal_each_signal_arrives_once() {
    let mut desk = Desk::new(BASH);
    let job = "trap 'echo caught-it' INT TERM HUP; echo ready; i=0; \
               while [ $i -lt 20 ]; do sleep 0.05; i=$((i+1)); done; exit 7";
    for signal in [None, Some(SIGINT), Some(SIGTERM), Some(SIGHUP)] {
        let begun = desk.start("", job);
        desk.terminal.expect("ready");
        match signal {
            None => desk.terminal.key(CTRL_C),
            Some(signal) => begun.dblock.signal(signal),
        }
        let shown = desk.over(7);
        let count = shown.matches("caught-it").count();
        assert_eq!(count, 1, "{signal:?}: {shown}");
    }
    desk.terminal.exit();
}

/// dash dies of SIGQUIT when its command did; bash goes on in any case.
#[test]
fn b1_ctrl_backslash_ends_a_surrounding_script() {
    let mut desk = Desk::new(BASH);
    let run = desk.run("", SLEEP);
    let script = desk.script(&format!("ulimit -c 0; {run}\necho not\"\"reached"));
    desk.terminal.line(&format!("dash {}", script.display()));
    let begun = desk.begun();
    desk.terminal.wait_for_foreground(begun.job);
    desk.terminal.key(CTRL_BACKSLASH);
    let shown = desk.over(131);
    assert!(!shown.contains("notreached"), "{shown}");
    desk.terminal.exit();
}

#[test]
fn b1_ctrl_z_and_then_the_proof_comes_before_the_job_goes_on() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let url = quoted(&place.database().url_at(proxy.port()));
    let mut desk = Desk::at(place, BASH);
    desk.terminal.command(&format!("export DBLOCK_URL={url}"));
    let (go, written) = (desk.place.file("go"), desk.place.file("written"));
    let begun = desk.start("--ttl 30s", &waiting(&[&go, &written]));
    desk.terminal.wait_for_foreground(begun.job);
    desk.suspend(begun);
    let length = || fs::metadata(&written).map_or(0, |file| file.len());
    let (before, row) = (length(), desk.place.row("k"));
    proxy.hold();
    desk.terminal.line("fg");
    desk.wait_until_it_goes_on(begun.dblock);
    // The job has every chance to go on too early.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        assert_eq!(state_of(begun.job), Some('T'), "{}", desk.terminal.facts());
    }
    assert_eq!(length(), before, "the job went on without a proof");
    proxy.pass();
    desk.wait_until_it_goes_on(begun.job);
    let now = desk.place.row("k");
    assert!(now.renewals > row.renewals, "{row:?} {now:?}");
    desk.terminal.wait_for_foreground(begun.job);
    fs::write(&go, "").expect("the file can be made");
    desk.over(6);
    desk.terminal.exit();
}

#[test]
fn b1_a_lease_that_was_taken_behind_ctrl_z_kills_the_job_unresumed() {
    let mut desk = Desk::new(BASH);
    let written = desk.place.file("written");
    let job = waiting(&[&desk.place.file("never"), &written]);
    let begun = desk.start("--ttl 10m", &format!("trap '' TERM; {job}"));
    desk.terminal.wait_for_foreground(begun.job);
    desk.suspend(begun);
    let length = || fs::metadata(&written).map_or(0, |file| file.len());
    let before = length();
    let successor = desk.place.steal("k");
    desk.terminal.line("fg");
    desk.terminal.expect("thief-host");
    desk.terminal.prompt();
    assert_eq!(desk.terminal.status(), 76);
    assert_eq!(length(), before, "the job went on without a lease");
    desk.family.vanishes();
    assert_eq!(desk.place.row("k"), successor);
    desk.terminal.exit();
}

#[test]
fn b1_a_job_that_is_stopped_is_ended_by_kill() {
    let mut desk = Desk::new(BASH);
    let begun = desk.start("", SLEEP);
    desk.terminal.wait_for_foreground(begun.job);
    desk.suspend(begun);
    // To a job that is stopped bash sends CONT, too.
    let mut shown = desk.terminal.command("kill %1");
    wait::until("the shell to tell of the end", || {
        shown.push_str(&desk.terminal.command(":"));
        if shown.contains("Terminated") {
            Ok(())
        } else {
            Err(desk.terminal.facts())
        }
    });
    desk.left(0);
    assert!(!begun.dblock.is_alive() && !begun.job.is_alive());
    desk.terminal.exit();
}

/// Stops a job, lets it go on in the background and takes it into the
/// foreground again. That dblock is told of the last step is not certain: bash
/// does not send CONT to what is running.
#[track_caller]
fn fg_after_bg(desk: &mut Desk, begun: Begun) {
    desk.terminal.wait_for_foreground(begun.job);
    desk.suspend(begun);
    desk.terminal.command("bg");
    desk.wait_until_it_goes_on(begun.job);
    desk.terminal.line("fg");
    wait::until("the shell to have left the foreground", || {
        if Some(desk.terminal.foreground()) == desk.terminal.leader().group() {
            Err(desk.terminal.facts())
        } else {
            Ok(())
        }
    });
}

#[test]
fn b1_ctrl_c_after_bg_and_fg() {
    for shell in SHELLS {
        let mut desk = Desk::new(shell);
        let begun = desk.start("", SLEEP);
        fg_after_bg(&mut desk, begun);
        desk.terminal.key(CTRL_C);
        desk.over(130);
        desk.terminal.exit();
    }
}

#[test]
fn b1_ctrl_z_after_bg_and_fg() {
    // Not in dash, whose CONT might come after the key.
    let mut desk = Desk::new(BASH);
    let begun = desk.start("", SLEEP);
    fg_after_bg(&mut desk, begun);
    desk.suspend(begun);
    desk.terminal.line("fg");
    desk.wait_until_it_goes_on(begun.job);
    desk.terminal.wait_for_foreground(begun.job);
    desk.terminal.key(CTRL_C);
    desk.over(130);
    desk.terminal.exit();
}

#[test]
fn b1_a_job_reads_after_bg_and_fg() {
    for shell in SHELLS {
        let mut desk = Desk::new(shell);
        let go = desk.place.file("go");
        let wait = waiting(&[&go]).replacen("exec ", "", 1);
        let begun = desk.start("", &format!("{wait}; {READ}"));
        fg_after_bg(&mut desk, begun);
        fs::write(&go, "").expect("the file can be made");
        desk.terminal.line("hello");
        desk.terminal.expect("got:hello");
        desk.over(0);
        desk.terminal.exit();
    }
}

/// The leader of a session, such as the first process of a container, has
/// nobody around it who could continue it.
#[test]
fn b1_ctrl_z_without_a_shell_does_not_freeze_the_job() {
    let (place, family) = (Place::embedded(), Family::new());
    let (go, written) = (place.file("go"), place.file("written"));
    let command = format!(
        "env {} dblock run --key k -- sh -c {}",
        family.mark(),
        quoted(&waiting(&[&go, &written]))
    );
    let mut terminal = Terminal::of(&place, &command);
    let goes_on = |terminal: &Terminal| {
        let length = || fs::metadata(&written).map_or(0, |file| file.len());
        let before = length();
        wait::until("the job to go on", || {
            let more = length() > before + 3;
            more.then_some(()).ok_or_else(|| terminal.facts())
        });
    };
    goes_on(&terminal);
    for _ in 0..2 {
        terminal.key(CTRL_Z);
        // Whether it stops for a moment or not at all.
        goes_on(&terminal);
        goes_on(&terminal);
    }
    fs::write(&go, "").expect("the file can be made");
    terminal.end().code(6);
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn b1_an_end_in_the_background_takes_the_foreground_from_nobody() {
    for tostop in ["stty -tostop", "stty tostop"] {
        let mut desk = Desk::new(BASH);
        desk.terminal.command(tostop);
        let go = desk.place.file("go");
        let run = desk.run("", &waiting(&[&go]));
        // What the job says in the background would stop it.
        desk.terminal.command(&format!("{run} >/dev/null &"));
        wait::until("the grant", || match desk.place.rows("k").len() {
            1 => Ok(()),
            _ => Err(desk.terminal.facts()),
        });
        desk.terminal.line("sleep 100");
        wait_for_sleep_in_the_foreground(&desk.terminal);
        let foreground = desk.terminal.foreground();
        fs::write(&go, "").expect("the file can be made");
        desk.family.vanishes();
        assert_eq!(desk.terminal.foreground(), foreground, "after {tostop}");
        desk.terminal.key(CTRL_C);
        // The shell tells of the job when it shows its next prompt.
        desk.terminal.expect("Exit 6");
        desk.over(130);
        desk.terminal.exit();
    }
}

/// Runs a command in a script that reads the terminal afterwards. A script has
/// no job control: without the foreground it would be stopped, or killed by
/// what it reads or writes.
#[track_caller]
fn the_script_around_reads(desk: &mut Desk, run: &str, status: i32, meanwhile: impl FnOnce(&Desk)) {
    desk.terminal.command("stty tostop");
    let script = desk.script(&format!(
        "{run}\necho status:$?:\nread y\necho \"then:$y:\"\n"
    ));
    desk.terminal.line(&format!("bash {}", script.display()));
    meanwhile(desk);
    desk.terminal.expect(&format!("status:{status}:"));
    desk.terminal.line("hello");
    desk.terminal.expect("then:hello:");
    let shown = desk.terminal.prompt();
    assert!(!shown.contains("Stopped"), "{shown}");
    desk.terminal.assert_shell_in_foreground();
    desk.place.assert_free("k");
}

#[test]
fn b1_the_foreground_is_handed_back_after_each_end() {
    for (options, job, status) in [
        ("", "exit 3", 3),
        ("", "kill -KILL $$", 137),
        ("--timeout 500ms", SLEEP, 124),
        ("", "exec bash --norc +o history -ic 'exit 3'", 3),
        ("--leftovers leave", "sleep 2 & exit 3", 3),
        ("--leftovers kill", "sleep 60 & exit 3", 3),
        ("", "setsid sleep 60 >/dev/null 2>&1 & exit 3", 3),
    ] {
        let mut desk = Desk::new(BASH);
        let run = desk.run(options, job);
        the_script_around_reads(&mut desk, &run, status, |_| {});
        desk.terminal.exit();
    }
}

#[test]
fn b1_the_foreground_is_handed_back_if_nothing_could_be_started() {
    let mut desk = Desk::new(BASH);
    for (command, status) in [("/nonexistent/command", 127), ("/etc/passwd", 126)] {
        let run = format!("dblock run --key k -- {command}");
        the_script_around_reads(&mut desk, &run, status, |_| {});
    }
    desk.terminal.exit();
}

#[test]
fn b1_the_foreground_is_handed_back_after_a_loss() {
    for guard_dies in [false, true] {
        let mut desk = Desk::new(BASH);
        let run = desk.run("--ttl 3s", SLEEP);
        the_script_around_reads(&mut desk, &run, 76, |desk| {
            wait::until("the job to have the terminal", || {
                let foreground = desk.terminal.foreground();
                match fs::read_to_string(format!("/proc/{foreground}/comm")).as_deref() {
                    Ok("sleep\n") => Ok(()),
                    other => Err(format!("{other:?} {}", desk.terminal.facts())),
                }
            });
            if guard_dies {
                let guard = desk.family.guard(desk.place.row("k").pid);
                guard.signal(SIGKILL);
            } else {
                desk.place.delete("k");
            }
        });
        desk.family.vanishes();
        desk.terminal.exit();
    }
}

#[test]
fn a7_a_job_under_nohup_outlives_its_terminal() {
    let mut desk = Desk::new(BASH);
    let (go, written) = (desk.place.file("go"), desk.place.file("written"));
    let job = desk.script(&waiting(&[&go, &written]));
    let command = format!(
        "env {} nohup dblock run --key k -- sh {} >/dev/null 2>&1 &",
        desk.family.mark(),
        job.display()
    );
    desk.terminal.command(&command);
    wait::until("the job", || match fs::metadata(&written) {
        Ok(file) if file.len() > 0 => Ok(()),
        other => Err(format!("{other:?} {}", desk.terminal.facts())),
    });
    let shell = desk.terminal.leader();
    desk.terminal.hang_up();
    wait::until("the shell to end", || {
        let ended = !shell.is_alive();
        ended.then_some(()).ok_or_else(|| desk.terminal.facts())
    });
    let length = || fs::metadata(&written).map_or(0, |file| file.len());
    let before = length();
    wait::until("the job to go on", || match length() {
        now if now > before + 3 => Ok(()),
        now => Err(format!("{now} bytes, {:?}", desk.family.all())),
    });
    assert_eq!(desk.place.rows("k").len(), 1);
    fs::write(&go, "").expect("the file can be made");
    desk.family.vanishes();
    desk.place.assert_free("k");
}
