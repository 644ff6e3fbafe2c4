//! Surroundings that are against it: closed and broken streams, a loaded
//! machine, no processes to be had; and the status of the job through all of
//! it.
//!
//! `DBLOCK_TEST_SECONDS` says for how long the machine is loaded.

use std::env;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{self, SIGKILL, SIGTERM};

use crate::support::dblock::Output;
use crate::support::family::{Family, status_field};
use crate::support::jobs::{BUSY, perl, quoted};
use crate::support::on_every_store;
use crate::support::outcome::status;
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::pty::{BASH, Terminal};
use crate::support::running::Running;
use crate::support::users::{as_a_user, skipped};
use crate::support::wait;

on_every_store!(
    b4_closed_streams_are_closed_for_the_job,
    c1_c2_the_status_is_that_of_the_job,
    nobody_reads_what_is_said,
);

fn path_text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

/// Starts a call of `sleep` from a script, and returns what its standard
/// streams are, and it as well. They are looked at from outside, as everything
/// that could tell would itself open something in the place of a closed one.
#[track_caller]
fn streams(place: &Place, name: &str, script: &str) -> (Vec<String>, Process, Running) {
    let pid = place.file(name);
    let running = place.shell(script).env("PID_FILE", &pid).start();
    let process = wait::until("sleep", || {
        let line = fs::read_to_string(&pid).map_err(|_| running.facts())?;
        let whole = line.strip_suffix('\n').ok_or("an unfinished line")?;
        // Before it sleeps it opens libraries.
        let stat = fs::read_to_string(format!("/proc/{whole}/stat")).unwrap_or_default();
        if stat.contains(" (sleep) S ") {
            Ok(Process::printed(whole))
        } else {
            Err(format!("{stat} {}", running.facts()))
        }
    });
    let of = |number: u32| {
        let place = Path::new("/proc").join(process.pid().to_string());
        let Ok(what) = fs::read_link(place.join(format!("fd/{number}"))) else {
            return "closed".to_owned();
        };
        let info = fs::read_to_string(place.join(format!("fdinfo/{number}")));
        let info = info.unwrap_or_default();
        let flags = info.lines().find(|line| line.starts_with("flags:"));
        format!("{} {flags:?}", what.display())
    };
    let seen = (0..3).map(of).collect();
    (seen, process, running)
}

fn b4_closed_streams_are_closed_for_the_job(place: &Place) {
    for closed in 0..8_u8 {
        let mut redirections = "</dev/null >/dev/null 2>/dev/zero".to_owned();
        for (bit, close) in [(1, " <&-"), (2, " >&-"), (4, " 2>&-")] {
            if closed & bit != 0 {
                redirections.push_str(close);
            }
        }
        let job = "sh -c 'echo $$ >\"$PID_FILE\"; exec sleep 60'";
        let name = |of| format!("{of}-{closed}");
        let script = format!("exec {job} {redirections}");
        let (plain, process, running) = streams(place, &name("plain"), &script);
        process.signal(SIGTERM);
        running.wait().signal(SIGTERM).quiet();
        let script = format!("exec dblock run --key k -- {job} {redirections}");
        let (under, process, running) = streams(place, &name("under"), &script);
        assert_eq!(under, plain, "with {redirections}");
        let count = plain.iter().filter(|one| *one == "closed").count();
        assert_eq!(count, closed.count_ones() as usize, "{plain:?}");
        process.signal(SIGTERM);
        running.wait().signal(SIGTERM).quiet();
        place.assert_free("k");

        let script = format!("exec dblock run --key k -- sh -c 'exit 7' {redirections}");
        place.shell(&script).run().code(7).quiet();
        place.assert_free("k");
    }
}

/// Returns a script in which descriptor 5 is a pipe whose reader is gone.
fn without_a_reader(place: &Place, name: &str, then: &str) -> String {
    let pipe = place.file(name);
    let pipe = quoted(path_text(&pipe));
    // Opened for both, so that opening it does not wait for the other side.
    format!("mkfifo {pipe}; exec 4<>{pipe} 5>{pipe} 4<&-; {then}")
}

/// Returns a script in which descriptor 5 is a full pipe that somebody could
/// read, and does not.
fn with_a_full_pipe(place: &Place, name: &str, then: &str) -> String {
    let pipe = place.file(name);
    let pipe = quoted(path_text(&pipe));
    format!(
        "mkfifo {pipe}; exec 4<>{pipe}; \
         dd if=/dev/zero of={pipe} bs=4096 count=1000 oflag=nonblock 2>/dev/null; \
         exec 5>{pipe}; {then}"
    )
}

/// Renews, and passes the status of the job on.
fn nobody_reads_what_is_said(place: &Place) {
    for name in ["gone", "full-pipe", "full-device", "closed"] {
        let gate = place.gate();
        let job = format!("echo $$; {}; exit 7", gate.wait());
        let run = format!(
            "exec dblock run --verbose --key k --ttl 2s -- sh -c {} 2>&5 4<&- 5>&-",
            quoted(&job)
        );
        let script = match name {
            "gone" => without_a_reader(place, name, &run),
            // What still has the pipe open for reading is descriptor 4 of a
            // shell that waits.
            "full-pipe" => {
                let waiting = run.replacen("exec ", "", 1);
                with_a_full_pipe(place, name, &format!("{waiting}; exit $?"))
            }
            "full-device" => format!("exec 5>/dev/full; {run}"),
            _ => run.replace("2>&5", "2>&-"),
        };
        let family = Family::new();
        let mut running = family.of(place.shell(&script)).start();
        running.job();
        let first = place.row("k");
        // Longer than the lease, and so by renewals only.
        wait::until("renewals", || {
            let now = place.row("k");
            if now.expire_at > first.expire_at + 2500 {
                Ok(())
            } else {
                Err(format!("{name}: {now:?} {}", running.facts()))
            }
        });
        gate.open();
        let output = running.wait().code(7);
        output.took_at_most(Duration::from_secs(15));
        family.assert_gone();
        place.assert_free("k");
    }
}

/// What stops the job of a lost lease must not wait for a reader, either.
#[test]
fn c6_a_loss_is_a_loss_also_if_nobody_reads_about_it() {
    for name in ["gone", "full-pipe"] {
        let (place, family) = (Place::embedded(), Family::new());
        let run = "dblock run --verbose --key k --ttl 4s -- sh -c 'echo $$; exec sleep 60' \
                   2>&5 4<&- 5>&-; exit $?";
        let script = match name {
            "gone" => without_a_reader(&place, name, run),
            _ => with_a_full_pipe(&place, name, run),
        };
        let mut running = family.of(place.shell(&script)).start();
        let job = running.job();
        let left = u64::try_from(place.left_ms("k")).expect("the lease is alive");
        place.delete("k");
        wait::within(Duration::from_millis(left), "the job to die", || {
            if job.is_alive() {
                Err(running.facts())
            } else {
                Ok(())
            }
        });
        running.wait().code(76);
        family.assert_gone();
        place.assert_free("k");
    }
}

/// A stop that is asked for is passed on, and what the job makes of it is its
/// status.
#[test]
fn a2_a_stop_is_a_stop_also_if_nobody_reads_about_it() {
    // In Perl, because a shell would tell of its children, and then die itself
    // of having nobody to tell.
    let job = perl(
        "$SIG{TERM} = sub { exit 3 }; syswrite(STDOUT, \"$$\\n\"); \
         select(undef, undef, undef, 0.02) for 1 .. 3000",
        &[],
    );
    for name in ["gone", "full-pipe", "full-device", "closed"] {
        let (place, family) = (Place::embedded(), Family::new());
        let run = format!("dblock run --verbose --key k -- {job} 2>&5 4<&- 5>&-; exit $?");
        let script = match name {
            "gone" => without_a_reader(&place, name, &run),
            "full-pipe" => with_a_full_pipe(&place, name, &run),
            "full-device" => format!("exec 5>/dev/full; {run}"),
            _ => format!("exec 5>&-; {}", run.replace("2>&5", "2>&-")),
        };
        let mut running = family.of(place.shell(&script)).start();
        running.job();
        let dblock = i32::try_from(place.row("k").pid).expect("a pid fits");
        Process::of(dblock)
            .expect("dblock is there")
            .signal(SIGTERM);
        running.wait().code(3);
        family.assert_gone();
        place.assert_free("k");
    }
}

/// Whatever dblock does in order not to wait for its reader, the job must not
/// see it: the flags belong to the pipe's end, which they share.
#[test]
fn the_job_has_streams_that_block() {
    let place = Place::embedded();
    let show = "for i in 0 1 2; do grep flags /proc/self/fdinfo/$i; done";
    let around = |call: &str| format!("{{ : | {call} 2>&1 | cat; }}");
    let plain = place.shell(&around(show)).run().code(0);
    let call = format!("dblock run --verbose --key k -- sh -c {}", quoted(show));
    let run = place.shell(&around(&call)).run().code(0);
    let flags = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("flags:"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(flags(run.text()), flags(plain.text()));
    assert_eq!(flags(plain.text()).len(), 3);
}

/// The other way to say it: 75, with nobody there to hear who has the key.
#[test]
fn c4_busy_is_busy_also_if_nobody_reads_about_it() {
    let place = Place::embedded();
    let mut holder = place.run("k").job("echo $$; exec sleep 60").start();
    holder.job();
    let run = "dblock run --key k -- true 2>&5; exit $?";
    for script in [
        without_a_reader(&place, "gone", run),
        with_a_full_pipe(&place, "full", run),
        format!("exec 5>/dev/full; {run}"),
        format!("exec 5>&-; {}", run.replace("2>&5", "2>&-")),
    ] {
        place.shell(&script).run().code(75);
    }
}

fn seconds() -> Duration {
    let text = env::var("DBLOCK_TEST_SECONDS").unwrap_or_else(|_| "4".to_owned());
    Duration::from_secs(text.parse().expect("DBLOCK_TEST_SECONDS is a number"))
}

#[test]
fn d10_a_loaded_host_loses_no_lease() {
    const TTL: Duration = Duration::from_secs(3);
    let (place, family) = (Place::embedded(), Family::new());
    let gate = place.file("gate");
    let busy = perl(BUSY, &["50", gate.to_str().expect("the path is UTF-8")]);
    let run = family.of(place.run("k")).args(["--ttl", "3s"]);
    let running = run.job(&format!("exec {busy}")).start();
    wait::until("the load", || match family.job().len() {
        51 => Ok(()),
        other => Err(format!("{other} processes; {}", running.facts())),
    });
    // A row's end tells when its last renewal was sent.
    let (begin, mut last, mut gap) = (Instant::now(), place.row("k"), 0);
    while begin.elapsed() < seconds() {
        let next = place.wait_for_renewal("k");
        let renewals = i64::try_from(next.renewals - last.renewals).expect("it fits");
        gap = gap.max((next.expire_at - last.expire_at) / renewals);
        last = next;
    }
    let limit = i64::try_from(TTL.as_millis() * 2 / 3).expect("it fits");
    assert!(
        gap < limit,
        "{gap} ms between two renewals; {}",
        running.facts()
    );
    fs::write(&gate, "").expect("the gate can be opened");
    running.wait().code(5).quiet();
    family.assert_gone();
    place.assert_free("k");
}

#[test]
fn no_process_to_be_had_is_no_job_and_no_row() {
    let place = Place::embedded();
    let mut found = Vec::new();
    // From too few for anything to enough for all: each limit is met at
    // another step.
    for processes in 1..=16 {
        let call = match as_a_user(&place) {
            Ok(call) => call,
            Err(why) => return skipped(&why),
        };
        let family = Family::new();
        let marker = place.file(&format!("ran-{processes}"));
        let call = family.of(call).arg("prlimit");
        let call = call.arg(format!("--nproc={processes}:{processes}"));
        let call = call.args(["dblock", "run", "--key", "k", "--"]);
        let output = call.arg("touch").arg(&marker).run();
        let status = status(&output);
        found.push(status);
        family.vanishes();
        place.assert_free("k");
        match status {
            0 => assert!(marker.exists(), "no job with {processes}: {output:?}"),
            70 => {
                assert!(!marker.exists(), "a job with {processes}: {output:?}");
                assert!(output.stderr.starts_with("dblock: "), "{output:?}");
                assert!(!output.stderr.contains("panicked"), "{output:?}");
            }
            _ => panic!("{status} with {processes} processes: {output:?}"),
        }
    }
    assert_eq!(found.first(), Some(&70), "{found:?}");
    assert_eq!(found.last(), Some(&0), "{found:?}");
}

/// How a job ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Exit(i32),
    By(Signal),
}

impl End {
    /// Checks that dblock ended in the same way.
    #[track_caller]
    fn check(self, output: Output) -> Output {
        match self {
            Self::Exit(code) => output.code(code),
            Self::By(signal) => output.signal(signal),
        }
    }

    /// Returns the status that a shell shows.
    fn shown(self) -> i32 {
        match self {
            Self::Exit(code) => code,
            Self::By(signal) => 128 + signal as i32,
        }
    }
}

/// Jobs: what they do first, what they do in the end if nobody signals them,
/// how that ends, and how TERM ends them.
const JOBS: [(&str, &str, End, End); 7] = [
    ("", "exit 0", End::Exit(0), End::By(SIGTERM)),
    ("", "exit 7", End::Exit(7), End::By(SIGTERM)),
    ("", "kill -TERM $$", End::By(SIGTERM), End::By(SIGTERM)),
    ("", "kill -KILL $$", End::By(SIGKILL), End::By(SIGTERM)),
    (
        "trap 'exit 3' TERM;",
        "kill -TERM $$",
        End::Exit(3),
        End::Exit(3),
    ),
    ("trap 'exit 0' TERM;", "exit 7", End::Exit(7), End::Exit(0)),
    (
        "trap 'kill -KILL $$' TERM;",
        "exit 7",
        End::Exit(7),
        End::By(SIGKILL),
    ),
];

/// Who is sent TERM.
#[derive(Clone, Copy, Debug)]
enum Signalled {
    Nobody,
    Dblock,
    Job,
}

const SIGNALLED: [Signalled; 3] = [Signalled::Nobody, Signalled::Dblock, Signalled::Job];

fn c1_c2_the_status_is_that_of_the_job(place: &Place) {
    for (first, last, by_itself, by_term) in JOBS {
        for signalled in SIGNALLED {
            let (family, gate) = (Family::new(), place.gate());
            let job = format!("{first} echo $$; {}; {last}", gate.wait());
            let mut running: Running = family.of(place.run("k")).job(&job).start();
            let process = running.job();
            let expected = match signalled {
                Signalled::Nobody => {
                    gate.open();
                    by_itself
                }
                Signalled::Dblock => {
                    running.signal(SIGTERM);
                    by_term
                }
                Signalled::Job => {
                    process.signal(SIGTERM);
                    by_term
                }
            };
            let output = expected.check(running.wait());
            // The shell that is the job may say of what its child died.
            let said = output.stderr.contains("dblock");
            assert!(!said, "{job}: {signalled:?}: {output:?}");
            family.assert_gone();
            place.assert_free("k");
        }
    }
}

/// The same as a shell with job control sees it.
#[test]
fn c1_c2_the_status_is_that_of_the_job_in_a_terminal() {
    let (place, family) = (Place::embedded(), Family::new());
    let mut terminal = Terminal::with(&place, BASH);
    let all = JOBS
        .into_iter()
        .flat_map(|job| SIGNALLED.map(|who| (job, who)));
    for (number, ((first, last, by_itself, by_term), signalled)) in all.enumerate() {
        let gate = place.gate();
        let script = place.file(&format!("job-{number}"));
        let job = format!("{first} echo job:$$:; {}; {last}", gate.wait());
        fs::write(&script, job).expect("the script can be written");
        terminal.line(&format!(
            "env {} dblock run --key k -- sh {}",
            family.mark(),
            script.display()
        ));
        terminal.expect("job:");
        let process = Process::printed(&terminal.expect(":"));
        let dblock = i32::try_from(place.row("k").pid).expect("a pid fits");
        let dblock = Process::of(dblock).expect("dblock is there");
        let expected = match signalled {
            Signalled::Nobody => {
                gate.open();
                by_itself
            }
            Signalled::Dblock => {
                dblock.signal(SIGTERM);
                by_term
            }
            Signalled::Job => {
                process.signal(SIGTERM);
                by_term
            }
        };
        terminal.prompt();
        terminal.assert_shell_in_foreground();
        let found = terminal.status();
        assert_eq!(
            found,
            expected.shown(),
            "job {number}, {signalled:?}: {}",
            terminal.facts()
        );
        family.vanishes();
        place.assert_free("k");
    }
    terminal.exit();
}

/// Makes SIGUSR1 and SIGTERM blocked, and runs its arguments.
const BLOCKED: &str = "use POSIX; \
    sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGUSR1, SIGTERM)) or die; exec @ARGV or die;";

/// Shows what a program inherits besides its streams, masks of signals as
/// numbers without those of the C library's own, 32 and 33.
const INHERITED: &str = r#"
open(my $status, '<', '/proc/self/status') or die;
while (<$status>) {
    if (/^(Sig(?:Blk|Ign|Cgt|Pnd)|ShdPnd):\s*(\w+)/) {
        printf "%s %x\n", $1, hex($2) & ~(3 << 31);
    } elsif (/^(Uid|Gid|Groups|Umask|Cap|NoNewPrivs|Seccomp|Cpus_allowed|Threads|TracerPid|CoreDumping)/) {
        print;
    }
}
open(my $stat, '<', '/proc/self/stat') or die;
my ($fields) = <$stat> =~ /.*\) (.*)/;
my @fields = split ' ', $fields;
# Session, terminal, priority, nice, real-time priority and policy.
print "stat @fields[3, 4, 15, 16, 37, 38]\n";
for my $name (qw(oom_score_adj timerslack_ns coredump_filter personality cgroup limits)) {
    open(my $file, '<', "/proc/self/$name") or next;
    print "$name ", <$file>, "\n";
}
print "io ", `ionice`;
"#;

#[test]
fn the_job_inherits_the_rest_unchanged() {
    let place = Place::embedded();
    let show = perl(INHERITED, &[]);
    let blocked = perl(BLOCKED, &[]);
    for around in [
        "exec".to_owned(),
        "exec nice -n 5".to_owned(),
        "umask 0; trap '' PIPE CHLD HUP; exec nice -n 3".to_owned(),
        format!("exec {blocked} nice -n 1"),
        format!("trap '' CHLD TTOU TTIN TSTP CONT; exec {blocked}"),
        "exec choom -n 500 --".to_owned(),
        "echo 0x3f >/proc/self/coredump_filter; exec".to_owned(),
        "umask 077; ulimit -n 100; ulimit -S -c 0; exec".to_owned(),
        "trap '' HUP INT QUIT TERM USR1 USR2 ALRM WINCH PIPE CHLD; exec".to_owned(),
        "exec chrt --batch 0".to_owned(),
        "exec ionice --class 3".to_owned(),
        "exec setpriv --no-new-privs".to_owned(),
    ] {
        let call = |command: &str| place.shell(&format!("{around} {command}")).run().code(0);
        let nice = if around == "exec" { "env " } else { "" };
        let plain = call(&format!("{nice}{show}"));
        let under = call(&format!("{nice}dblock run --key k -- {show}"));
        assert!(plain.text().contains("SigCgt"), "{plain:?}");
        under.stdout(&plain.stdout).quiet();
        place.assert_free("k");
    }
}

/// A signal that is blocked for dblock must not become a way to outlive it.
#[test]
fn a2_a_blocked_term_does_not_keep_dblock_from_ending() {
    let (place, family) = (Place::embedded(), Family::new());
    let script = format!(
        "exec {} dblock run --key k --kill-after 1s -- sh -c 'echo $$; exec sleep 60'",
        perl(BLOCKED, &[])
    );
    let mut running = family.of(place.shell(&script)).start();
    let job = running.job();
    let blocked = status_field(job, "SigBlk").expect("the job is there");
    let blocked = u64::from_str_radix(&blocked, 16).expect("a mask");
    assert_ne!(blocked & 1 << (SIGTERM as i32 - 1), 0, "{blocked:x}");
    running.signal(Signal::SIGINT);
    running.wait().signal(Signal::SIGINT);
    family.assert_gone();
    place.assert_free("k");
}
