//! `dblock run`: what the job sees, and what everybody else sees meanwhile.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use nix::unistd::{Uid, User, gethostname};

use crate::support::dblock::{Dblock, Output};
use crate::support::on_every_store;
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::wait;

on_every_store!(
    g1_arguments_arrive_byte_for_byte,
    g2_what_follows_the_dashes_belongs_to_the_job,
    g2_a_key_that_looks_like_an_option,
    g3_bytes_that_are_no_utf8_arrive,
    b4_standard_input_goes_to_the_job,
    b4_a_surrounding_loop_keeps_its_lines,
    b4_a_closed_standard_input_is_no_problem,
    b6_sigpipe_is_as_without_dblock,
    the_job_sees_its_lease,
    the_job_sees_the_environment_else_unchanged,
    the_job_sees_directory_umask_and_limits_unchanged,
    the_job_sees_mask_and_ignored_signals_unchanged,
    the_job_has_no_descriptor_of_dblocks,
    the_job_has_its_own_process_group,
    the_row_is_there_as_long_as_the_job,
    the_lease_is_renewed,
    tokens_rise,
    a_busy_key_names_its_holder,
    c4_busy_and_a_failed_job_differ,
    c4_the_status_for_busy_can_be_chosen,
    waiting_ends_with_the_lock,
    waiting_ends_with_its_limit,
    a_timeout_is_124,
    verbose_says_what_happens,
    a_note_is_shown,
    a_process_left_in_the_group_keeps_the_lock,
    report_of_an_exit,
    report_of_a_signal,
    report_of_a_busy_key,
);

fn g1_arguments_arrive_byte_for_byte(place: &Place) {
    let words = [
        "a b", "", "$HOME", "*", "x\ny", ";id", "it's", "\\", "\"", "-", "--", "-k",
    ];
    let expected: String = words.iter().map(|word| format!("<{word}>\n")).collect();
    let run = place.run("k").args(["--", "printf", "<%s>\\n"]).args(words);
    run.run().code(0).stdout(expected).quiet();
    place.assert_free("k");
}

fn g2_what_follows_the_dashes_belongs_to_the_job(place: &Place) {
    let help = Dblock::program("cat").arg("--help").run().code(0);
    place
        .run("k")
        .args(["--", "cat", "--help"])
        .run()
        .code(0)
        .stdout(&help.stdout)
        .quiet();

    let words = ["--", "printf", "%s\\n", "--", "--key", "other"];
    place
        .run("k")
        .args(words)
        .run()
        .code(0)
        .stdout("--\n--key\nother\n")
        .quiet();

    let grep = place
        .run("k")
        .args(["--", "grep", "-v", "x"])
        .stdin("x\ny\n");
    grep.run().code(0).stdout("y\n").quiet();

    // Also without the dashes, dblock's options end at the command.
    place
        .run("k")
        .args(["sh", "-c", "echo \"$1\"", "sh", "--version"])
        .run()
        .code(0)
        .stdout("--version\n")
        .quiet();
    place
        .run("k")
        .args(["echo", "-n", "--", "a"])
        .run()
        .code(0)
        .stdout("-- a")
        .quiet();
}

fn g2_a_key_that_looks_like_an_option(place: &Place) {
    for key in ["-x", "--", "--version", "-"] {
        let run = place.dblock().arg("run").arg(format!("--key={key}"));
        run.job("echo \"$DBLOCK_KEY\"")
            .run()
            .code(0)
            .stdout(format!("{key}\n"))
            .quiet();
    }
}

fn g3_bytes_that_are_no_utf8_arrive(place: &Place) {
    let bytes = OsStr::from_bytes(b"\xff\xfe");
    let directory = place.file("d").with_file_name(bytes);
    std::fs::create_dir(&directory).expect("the file system takes any bytes");
    let run = place.run("k").cwd(&directory).env("ODD", bytes);
    let job = run.args([
        "--",
        "sh",
        "-c",
        "printf '%s.%s.%s' \"$0\" \"$ODD\" \"${PWD##*/}\"",
    ]);
    job.arg(bytes)
        .run()
        .code(0)
        .stdout(b"\xff\xfe.\xff\xfe.\xff\xfe")
        .quiet();
}

fn b4_standard_input_goes_to_the_job(place: &Place) {
    place
        .run("k")
        .args(["--", "cat"])
        .stdin("foo\n")
        .run()
        .code(0)
        .stdout("foo\n")
        .quiet();
    place
        .shell("echo foo | dblock run --key k -- cat")
        .run()
        .code(0)
        .stdout("foo\n")
        .quiet();
}

fn b4_a_surrounding_loop_keeps_its_lines(place: &Place) {
    for command in [
        "dblock run --key k -- true",
        "dblock status >/dev/null",
        "o=$(dblock acquire --key a$i) && dblock renew --key a$i --owner $o >/dev/null",
    ] {
        let script = format!("printf '1\\n2\\n3\\n' | while read i; do {command}; echo $i; done");
        place
            .shell(&script)
            .run()
            .code(0)
            .stdout("1\n2\n3\n")
            .quiet();
    }
}

fn b4_a_closed_standard_input_is_no_problem(place: &Place) {
    let closed = place.shell("dblock run --key k -- echo ran <&-");
    closed.run().code(0).stdout("ran\n").quiet();
}

fn b6_sigpipe_is_as_without_dblock(place: &Place) {
    let script = "yes | head -n 1; echo ${PIPESTATUS[0]}";
    let run = place.run("k").args(["--", "bash", "-c", script]);
    run.run().code(0).stdout("y\n141\n").quiet();

    // dblock's own output into a pipe that nobody reads.
    place
        .shell("dblock status | :; dblock status --json | :")
        .run()
        .code(0)
        .quiet();
}

fn the_job_sees_its_lease(place: &Place) {
    let gate = place.gate();
    let variables = ["KEY", "SLOT", "OWNER", "TOKEN", "TTL_MS"];
    let print: String = variables
        .iter()
        .map(|name| format!("echo \"$DBLOCK_{name}\"; "))
        .collect();
    let job = format!("{print}{}", gate.wait());
    let mut running = place.run("k").args(["--ttl", "9s"]).job(&job).start();
    let seen = running.lines(variables.len());
    let row = place.row("k");
    assert_eq!(seen, ["k", "0", &row.owner, &row.token.to_string(), "9000"]);
    assert_eq!(
        (row.ttl_ms, row.kind.as_str(), row.pid),
        (9000, "run", running.pid())
    );
    gate.open();
    running.wait().code(0).quiet();
}

fn the_job_sees_the_environment_else_unchanged(place: &Place) {
    let sorted = |output: &[u8]| {
        let variables = output.split(|byte| *byte == 0).map(<[u8]>::to_vec);
        let mut kept: Vec<_> = variables
            .filter(|text| !text.starts_with(b"DBLOCK_"))
            .collect();
        kept.sort();
        kept
    };
    let odd = OsStr::from_bytes(b"a=b\n\xff");
    // HOME and TMPDIR differ from call to call.
    let same = |call: Dblock| call.env("ODD", odd).env_remove("HOME").env_remove("TMPDIR");
    let plain = same(Dblock::program("env").arg("-0")).run().code(0);
    let run = same(place.run("k"))
        .args(["--", "env", "-0"])
        .run()
        .code(0)
        .quiet();
    assert_eq!(sorted(&run.stdout), sorted(&plain.stdout));
}

fn the_job_sees_directory_umask_and_limits_unchanged(place: &Place) {
    let show = "pwd; umask; ulimit -a";
    let around = |call: &str| format!("cd /proc; umask 027; ulimit -n 200; {call}");
    let plain = place.shell(&around(show)).run().code(0);
    let run = place.shell(&around(&format!("dblock run --key k -- sh -c '{show}'")));
    run.run().code(0).stdout(&plain.stdout).quiet();
}

fn the_job_sees_mask_and_ignored_signals_unchanged(place: &Place) {
    // Signals 32 and 33 belong to the C library, which sets them as it likes.
    let signals = |output: &Output| -> Vec<u64> {
        let values = output
            .text()
            .lines()
            .filter_map(|line| line.split_once(":\t"));
        let values = values.map(|(_, value)| u64::from_str_radix(value, 16).expect("a mask"));
        values.map(|mask| mask & !(0b11 << 31)).collect()
    };
    let show = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    for ignored in ["", "USR1 PIPE", "CHLD", "HUP INT QUIT TERM"] {
        let around = |call: &str| format!("trap '' {ignored} WINCH; exec {call}");
        let plain = place.shell(&around(show)).run().code(0);
        let run = place.shell(&around(&format!("dblock run --key k -- {show}")));
        let run = run.run().code(0).quiet();
        assert_eq!(signals(&run), signals(&plain), "with {ignored:?} ignored");
        assert_eq!(signals(&plain).len(), 2);
    }
}

fn the_job_has_no_descriptor_of_dblocks(place: &Place) {
    let list = "ls /proc/self/fd";
    for inherited in ["", "7</dev/null 9>/dev/null"] {
        let plain = place
            .shell(&format!("exec {list} {inherited}"))
            .run()
            .code(0);
        let run = place.shell(&format!("exec dblock run --key k -- {list} {inherited}"));
        run.run().code(0).stdout(&plain.stdout).quiet();
    }
}

fn the_job_has_its_own_process_group(place: &Place) {
    let gate = place.gate();
    let mut running = place
        .run("k")
        .job(&format!("echo $$; {}", gate.wait()))
        .start();
    let job = running.job();
    assert_eq!(job.group(), Some(job.pid()));
    assert_ne!(running.process().group(), job.group());
    gate.open();
    running.wait().code(0).quiet();
}

fn the_row_is_there_as_long_as_the_job(place: &Place) {
    let gate = place.gate();
    let mut running = place
        .run("k")
        .job(&format!("echo $$; {}; exit 3", gate.wait()))
        .start();
    running.job();
    let left = place.left_ms("k");
    assert!(
        (1..=30_000).contains(&left),
        "{left} ms left of the default of 30 s"
    );
    gate.open();
    running.wait().code(3).quiet();
    place.assert_free("k");
}

fn the_lease_is_renewed(place: &Place) {
    let gate = place.gate();
    let job = format!("echo $$; {}", gate.wait());
    let mut running = place.run("k").args(["--ttl", "2s"]).job(&job).start();
    running.job();
    let first = place.row("k");
    place.wait_for_renewal("k");
    let last = place.wait_for_renewal("k");
    assert!(last.expire_at > first.expire_at, "{first:?} {last:?}");
    assert_eq!((last.owner, last.token), (first.owner, first.token));
    gate.open();
    running.wait().code(0).quiet();
    place.assert_free("k");
}

fn tokens_rise(place: &Place) {
    let mut last = 0;
    for _ in 0..3 {
        let run = place.run("k").job("echo $DBLOCK_TOKEN").run().code(0);
        let token: u64 = run.text().trim().parse().expect("a number");
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

/// Holds `k` until the gate opens, and calls `meanwhile` with dblock's pid.
fn while_held(place: &Place, meanwhile: impl FnOnce(u32)) {
    let gate = place.gate();
    let mut holder = place
        .run("k")
        .job(&format!("echo $$; {}; exit 1", gate.wait()))
        .start();
    holder.job();
    let row = place.row("k");
    meanwhile(holder.pid());
    let now = place.row("k");
    assert_eq!(
        (now.owner, now.token),
        (row.owner, row.token),
        "the holder keeps the key"
    );
    gate.open();
    holder.wait().code(1).quiet();
    place.assert_free("k");
}

fn a_busy_key_names_its_holder(place: &Place) {
    let host = gethostname().expect("the host has a name");
    let user = User::from_uid(Uid::effective()).expect("users can be looked up");
    let user = user.map_or_else(|| Uid::effective().to_string(), |user| user.name);
    while_held(place, |pid| {
        let marker = place.file("started");
        let busy = place.run("k").args(["--", "touch"]).arg(&marker).run();
        busy.code(75).stdout("").one_line(&[
            "\"k\" is held by ",
            host.to_str().expect("UTF-8"),
            &format!("pid {pid}"),
            &user,
            " since ",
            " UTC",
            " left",
        ]);
        assert!(!marker.exists(), "the job was started");
    });
}

fn c4_busy_and_a_failed_job_differ(place: &Place) {
    while_held(place, |_| {
        place
            .run("k")
            .arg("--no-wait")
            .job("exit 1")
            .run()
            .code(75)
            .one_line(&[]);
        place
            .run("k")
            .arg("--quiet")
            .job("exit 1")
            .run()
            .code(75)
            .stdout("")
            .quiet();
        // Another key is none of their business.
        place
            .run("K")
            .arg("--no-wait")
            .job("exit 1")
            .run()
            .code(1)
            .quiet();
    });
    place
        .run("k")
        .arg("--no-wait")
        .job("exit 1")
        .run()
        .code(1)
        .quiet();
}

fn c4_the_status_for_busy_can_be_chosen(place: &Place) {
    while_held(place, |_| {
        for status in [0, 1, 99, 255] {
            let busy = place
                .run("k")
                .arg("--busy-exit")
                .arg(status.to_string())
                .job("exit 7");
            busy.run().code(status).one_line(&["held"]);
        }
        place
            .run("k")
            .args(["-E", "0", "-q"])
            .job("exit 7")
            .run()
            .code(0)
            .quiet();
    });
}

fn waiting_ends_with_the_lock(place: &Place) {
    let gate = place.gate();
    let log = place.file("log");
    let job = |name: &str| format!("echo {name} begins >>{0}; echo $$", log.display());
    let end = |name: &str| format!("echo {name} ends >>{}", log.display());
    let first = format!("{}; {}; {}", job("first"), gate.wait(), end("first"));
    let mut holder = place.run("k").job(&first).start();
    holder.job();
    for option in ["--wait=1m", "--wait"] {
        let waiter = place.run("k").arg(option).job(&job(option)).start();
        if option == "--wait=1m" {
            place.wait_until_reached_by(&waiter);
            waiter.assert_running();
            gate.open();
        }
        waiter.wait().code(0).quiet();
    }
    holder.wait().code(0).quiet();
    let log = std::fs::read_to_string(log).expect("both jobs have run");
    assert_eq!(
        log,
        "first begins\nfirst ends\n--wait=1m begins\n--wait begins\n"
    );
    place.assert_free("k");
}

fn waiting_ends_with_its_limit(place: &Place) {
    while_held(place, |_| {
        let waiter = place.run("k").args(["--wait", "1s", "--", "true"]).run();
        waiter
            .code(75)
            .one_line(&["held"])
            .took_at_least(Duration::from_secs(1))
            .took_at_most(Duration::from_secs(6));
    });
}

fn a_timeout_is_124(place: &Place) {
    let mut running = place
        .run("k")
        .args(["--timeout", "1s"])
        .job("echo $$; exec sleep 60")
        .start();
    let job = running.job();
    running
        .wait()
        .code(124)
        .took_at_least(Duration::from_secs(1));
    assert!(!job.is_alive());
    place.assert_free("k");

    // A job that ends in time is not concerned.
    place
        .run("k")
        .args(["--timeout", "1m"])
        .job("exit 9")
        .run()
        .code(9)
        .quiet();
}

fn verbose_says_what_happens(place: &Place) {
    let run = place
        .run("k")
        .args(["--verbose", "--", "true"])
        .run()
        .code(0)
        .stdout("");
    assert!(!run.stderr.is_empty(), "--verbose prints nothing");
}

fn a_note_is_shown(place: &Place) {
    let gate = place.gate();
    let note = "see https://ci.example/42";
    let job = format!("echo $$; {}", gate.wait());
    let mut running = place.run("k").args(["--note", note]).job(&job).start();
    running.job();
    assert_eq!(place.row("k").note, note);
    let status = place
        .dblock()
        .args(["status", "k", "--json"])
        .run()
        .code(0)
        .quiet()
        .json();
    assert_eq!(status[0]["note"], note);
    assert_eq!(status[0]["state"], "held");
    assert_eq!(status[0]["kind"], "run");
    assert_eq!(status[0]["pid"], running.pid());
    let status = place.dblock().args(["status", "k"]).run().code(0).quiet();
    assert!(status.text().contains(note), "{}", status.text());
    gate.open();
    running.wait().code(0).quiet();
}

fn a_process_left_in_the_group_keeps_the_lock(place: &Place) {
    let gate = place.gate();
    let job = format!("echo $$; ({}) & echo $!; exit 3", gate.wait());
    let mut running = place.run("k").args(["--ttl", "3s"]).job(&job).start();
    let first = running.lines(2)[0].parse().expect("a pid");
    wait::until("the first process to end", || {
        match Process::of(first).filter(|process| process.is_alive()) {
            None => Ok(()),
            Some(process) => Err(format!("{process:?} lives")),
        }
    });
    // The lease does not depend on the job's first process.
    place.wait_for_renewal("k");
    place.wait_for_renewal("k");
    place.run("k").args(["--", "true"]).run().code(75);
    running.assert_running();
    gate.open();
    running.wait().code(3);
    place.assert_free("k");
}

fn report(place: &Place, run: Dblock) -> (serde_json::Value, Output) {
    let path = place.file("report");
    let output = run.run();
    let text = std::fs::read_to_string(path).expect("the report was written");
    (
        serde_json::from_str(&text).expect("the report is JSON"),
        output,
    )
}

fn reported(place: &Place) -> Dblock {
    place.run("k").arg("--report").arg(place.file("report"))
}

const REPORT_FIELDS: [&str; 13] = [
    "acquired_at",
    "held_ms",
    "holder",
    "key",
    "outcome",
    "owner",
    "reason",
    "renewals",
    "signal",
    "slot",
    "status",
    "token",
    "waited_ms",
];

fn assert_fields(value: &serde_json::Value) {
    let mut fields: Vec<_> = value.as_object().expect("an object").keys().collect();
    fields.sort();
    assert_eq!(fields, REPORT_FIELDS);
}

fn report_of_an_exit(place: &Place) {
    let run = reported(place).job("echo $DBLOCK_OWNER $DBLOCK_TOKEN; exit 5");
    let (report, output) = report(place, run);
    let output = output.code(5).quiet();
    let (owner, token) = output.text().trim().split_once(' ').expect("two words");
    assert_fields(&report);
    assert_eq!(report["outcome"], "exited");
    assert_eq!(report["status"], 5);
    assert_eq!(report["signal"], serde_json::Value::Null);
    assert_eq!((&report["key"], &report["slot"]), (&"k".into(), &0.into()));
    assert_eq!(report["owner"], owner);
    assert_eq!(report["token"].to_string(), token);
    let time: Result<jiff::Timestamp, _> = report["acquired_at"].as_str().expect("a time").parse();
    assert!(time.is_ok(), "{time:?}");
    assert!(
        report["held_ms"].is_u64() && report["waited_ms"].is_u64(),
        "{report}"
    );
    assert_eq!(report["renewals"], 0);
    assert_eq!(report["holder"], serde_json::Value::Null);
}

fn report_of_a_signal(place: &Place) {
    let (report, output) = report(place, reported(place).job("kill -TERM $$"));
    output.signal(nix::sys::signal::Signal::SIGTERM);
    assert_fields(&report);
    assert_eq!(report["outcome"], "signaled");
    assert_eq!(report["status"], serde_json::Value::Null);
    assert!(!report["signal"].is_null(), "{report}");
}

fn report_of_a_busy_key(place: &Place) {
    while_held(place, |pid| {
        let (report, output) = report(place, reported(place).job("exit 5"));
        output.code(75);
        assert_fields(&report);
        assert_eq!(report["outcome"], "busy");
        assert_eq!(report["status"], 75);
        assert_eq!(report["owner"], serde_json::Value::Null);
        assert_eq!(report["holder"]["key"], "k");
        assert_eq!(report["holder"]["pid"], pid);
        assert_eq!(report["holder"]["owner"], place.row("k").owner.as_str());
    });
}

#[test]
fn f9_a_whole_run_takes_five_round_trips() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    for _ in 0..3 {
        let (connections, turns) = (proxy.connections(), proxy.turns());
        let run = place
            .run("k")
            .env("DBLOCK_URL", place.database().url_at(proxy.port()));
        run.args(["--note", "n", "--", "true"])
            .run()
            .code(0)
            .quiet();
        // The connection itself, greeting, login, acquire, release.
        assert_eq!(
            (proxy.connections() - connections, proxy.turns() - turns),
            (1, 4)
        );
    }
    place.assert_free("k");
}

#[test]
fn f9_a_url_with_an_address_never_becomes_the_socket() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let gate = place.gate();
    let run = place
        .run("k")
        .env("DBLOCK_URL", place.database().url_at(proxy.port()));
    let job = format!("echo $$; {}", gate.wait());
    let mut running = run.args(["--ttl", "3s"]).job(&job).start();
    running.job();
    place.wait_for_renewal("k");
    proxy.cut();
    wait::until("a second connection", || match proxy.connections() {
        1 => Err("there is one".to_owned()),
        _ => Ok(()),
    });
    place.wait_for_renewal("k");
    gate.open();
    running.wait().code(0);
    place.assert_free("k");
}
