//! The exit status never lies: the job's own, and each of dblock's.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::database::Database;
use crate::support::dblock::{Dblock, Output};
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::server::{Server, free_port};
use crate::support::{PASSWORD, PASSWORD_VARIABLE, on_every_store};

on_every_store!(
    c2_death_by_a_signal_is_passed_on,
    c2_a_shell_shows_128_and_the_signal,
    c3_what_cannot_be_started_leaves_no_row,
    c6_a_lost_lease_is_76_however_the_job_dies,
);

#[test]
fn c1_each_of_the_256_statuses_is_passed_on() {
    let place = Place::embedded();
    for status in 0..=255 {
        place
            .run("k")
            .job(&format!("exit {status}"))
            .run()
            .code(status)
            .stdout("")
            .quiet();
    }
    place.assert_free("k");
}

/// Runs a job that exits with 7 after `disturb` was called, and returns the
/// output and how long dblock needed to end after its job.
fn exit_7_after(disturb: impl FnOnce(&Proxy)) -> (Output, Duration) {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    let gate = place.gate();
    let run = place
        .run("k")
        .env("DBLOCK_URL", place.database().url_at(proxy.port()));
    let job = format!("echo $$; {}; exit 7", gate.wait());
    let mut running = run.args(["--ttl", "6s"]).job(&job).start();
    running.job();
    disturb(&proxy);
    let begin = Instant::now();
    gate.open();
    (running.wait(), begin.elapsed())
}

#[test]
fn c1_a_release_that_is_refused_is_a_warning() {
    let (output, took) = exit_7_after(Proxy::refuse);
    output.code(7).one_line(&["\"k\""]);
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[test]
fn c1_a_release_that_is_never_answered_is_a_warning() {
    let (output, took) = exit_7_after(Proxy::hold);
    output.code(7).one_line(&["\"k\""]);
    // Two network limits of less than a third of the TTL each, and some air.
    assert!(took < Duration::from_secs(6), "{took:?}");
}

fn c2_death_by_a_signal_is_passed_on(place: &Place) {
    use Signal::{SIGABRT, SIGALRM, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGQUIT, SIGSEGV, SIGTERM};
    use Signal::{SIGUSR1, SIGUSR2};
    let signals = [
        SIGABRT, SIGALRM, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGQUIT, SIGSEGV, SIGTERM, SIGUSR1,
        SIGUSR2,
    ];
    for signal in signals {
        let job = format!("kill -{} $$", signal as i32);
        place.run("k").job(&job).run().signal(signal).stdout("");
        place.assert_free("k");
    }
    // The job may leave a core, where its limits say so; dblock never does.
    let job = "ulimit -c unlimited; exec dblock run --key k -- sh -c 'cd /; kill -SEGV $$'";
    place.shell(job).run().signal(SIGSEGV).stdout("");
    place.assert_free("k");
}

#[test]
fn c2_death_by_a_real_time_signal_is_passed_on() {
    // Libraries do not know these signals by name.
    let place = Place::embedded();
    let script = "dblock run --key k -- sh -c 'kill -40 $$'; echo $?";
    place.shell(script).run().code(0).stdout("168\n");
    place.assert_free("k");
    let script = "dblock run --key k -- sh -c 'sleep 0.2 & kill -40 $$'; echo $?";
    place.shell(script).run().code(0).stdout("168\n");
    place.assert_free("k");
    let script = "dblock run --key k -- sh -c 'sh -c \"kill -40 \\$\\$\" & sleep 0.3; exit 3'";
    place.shell(script).run().code(3);
    place.assert_free("k");
}

fn c2_a_shell_shows_128_and_the_signal(place: &Place) {
    for (signal, status) in [("KILL", "137\n"), ("SEGV", "139\n"), ("TERM", "143\n")] {
        let script = format!("dblock run --key k -- sh -c 'kill -{signal} $$'; echo $?");
        place.shell(&script).run().code(0).stdout(status);
    }
}

fn script(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("the script can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the mode can be set");
}

fn c3_what_cannot_be_started_leaves_no_row(place: &Place) {
    let directory = place.file("bin");
    fs::create_dir(&directory).expect("a directory for scripts");
    script(&directory.join("not-executable"), "#!/bin/sh\n", 0o644);
    script(
        &directory.join("bad-shebang"),
        "#!/no/such/interpreter\n",
        0o755,
    );
    for (command, status) in [
        ("./not-executable", 126),
        ("./bad-shebang", 126),
        ("/", 126),
        ("./no-such-file", 127),
        ("/no/such/file", 127),
        ("no-such-command", 127),
    ] {
        let run = place
            .run("k")
            .cwd(&directory)
            .args(["--", command, "argument"])
            .run();
        run.code(status).stdout("").one_line(&[command]);
        place.assert_free("k");
    }
}

#[test]
fn c3_no_command_is_a_usage_error() {
    refused(
        64,
        configured().args(["run", "--key", "k", "--"]),
        &["COMMAND"],
    );
    refused(64, configured().args(["run", "--key", "k"]), &["COMMAND"]);
}

fn c6_a_lost_lease_is_76_however_the_job_dies(place: &Place) {
    // Some shells tell on standard error which of their children were killed.
    let endless = "exec 2>/dev/null; while :; do sleep 0.1; done";
    let jobs = [
        ("dies", "echo $$; exec sleep 60".to_owned()),
        ("exits", format!("trap 'exit 0' TERM; echo $$; {endless}")),
        ("ignores", format!("trap '' TERM; echo $$; {endless}")),
        ("free", "echo $$; exec sleep 60".to_owned()),
    ];
    let calls = jobs.map(|(key, job)| {
        let mut running = place.run(key).args(["--ttl", "4s"]).job(&job).start();
        let job = running.job();
        (key, running, job)
    });
    for (key, _, _) in &calls {
        if *key == "free" {
            place.delete(key);
        } else {
            place.steal(key);
        }
    }
    for (key, running, job) in calls {
        let lost = running.wait().code(76).one_line(&[&format!("\"{key}\"")]);
        assert!(!job.is_alive(), "the job of {key:?} lives");
        if key == "free" {
            assert!(!lost.stderr.contains("thief-host"), "{}", lost.stderr);
        } else {
            lost.says(&["thief-host"]);
        }
    }
}

/// Returns dblock with a well-formed URL behind which nobody listens: if it
/// connects before it complains, it complains of something else.
fn configured() -> Dblock {
    let url = format!("mysql://user@127.0.0.1:{}/locks", free_port());
    Dblock::unconfigured()
        .env("DBLOCK_URL", url)
        .env(PASSWORD_VARIABLE, PASSWORD)
}

/// Checks that a call is refused: by status, in one line, without a word on
/// standard output.
#[track_caller]
fn refused(status: i32, call: Dblock, words: &[&str]) {
    call.run().code(status).stdout("").one_line(words);
}

#[test]
fn usage_errors_of_the_command_line() {
    refused(
        64,
        configured().arg("no-such-command"),
        &["no-such-command"],
    );
    refused(
        64,
        configured().arg("--no-such-option"),
        &["--no-such-option"],
    );
    refused(
        64,
        configured().args(["run", "--key", "k", "--no-such-option", "--", "true"]),
        &["--no-such-option"],
    );
    refused(64, configured().args(["run", "--", "true"]), &["--key"]);
    refused(64, configured().args(["acquire"]), &["--key"]);
    refused(
        64,
        configured().args(["release", "--key", "k"]),
        &["--owner"],
    );
    refused(
        64,
        configured().args(["release", "--key", "k", "--owner", "me"]),
        &["UUID"],
    );
    for status in ["256", "-1", "x", ""] {
        let busy_exit = format!("--busy-exit={status}");
        refused(
            64,
            configured().args(["run", "--key", "k", &busy_exit, "true"]),
            &["--busy-exit"],
        );
    }
    configured().run().code(64).stdout("");
}

#[test]
fn help_and_version_are_no_errors() {
    for option in ["--help", "--version"] {
        let output = Dblock::unconfigured().arg(option).run().code(0).quiet();
        assert!(output.text().contains("dblock"), "{}", output.text());
    }
    Dblock::unconfigured()
        .args(["run", "--help"])
        .run()
        .code(0)
        .quiet();
}

#[test]
fn g5_keys_that_cannot_be_stored_are_refused() {
    let long = "x".repeat(300);
    let wide = "😀".repeat(64);
    for key in [
        &long,
        &wide,
        "",
        " a",
        "a ",
        "a\u{3000}",
        "a\tb",
        "a\nb",
        "a\u{7f}",
        "a\u{85}b",
    ] {
        for command in [&["run", "--"][..], &["acquire"], &["status"]] {
            let (command, rest) = command.split_first().expect("a command");
            let call = configured().arg(command);
            let call = if *command == "status" {
                call.arg(key)
            } else {
                call.arg(format!("--key={key}"))
            };
            let call = if rest.is_empty() {
                call
            } else {
                call.args(["--", "true"])
            };
            refused(64, call, &["key"]);
        }
    }
    refused(
        64,
        configured()
            .arg("run")
            .arg(format!("--key={long}"))
            .arg("true"),
        &["255"],
    );
    let bytes = OsStr::from_bytes(b"\xff");
    refused(
        64,
        configured().args(["run", "--key"]).arg(bytes).arg("true"),
        &["UTF-8"],
    );

    let place = Place::embedded();
    place
        .run(&"x".repeat(255))
        .args(["--", "true"])
        .run()
        .code(0)
        .quiet();
}

#[test]
fn d11_odd_ttls() {
    for ttl in [
        "0",
        "0s",
        "1ms",
        "999ms",
        "31d",
        "999999999999h",
        "99999999999999999999s",
    ] {
        let call = configured().args(["run", "--key", "k", "--ttl", ttl, "--", "true"]);
        refused(64, call, &["--ttl"]);
    }
    for ttl in ["0", "1ms", "999999999999h"] {
        let call = configured().args(["run", "--key", "k", "--ttl", ttl, "--", "true"]);
        refused(64, call, &["1s", "30d"]);
    }
    for ttl in [
        "", "-1", "-1s", "10S", "ten", "1e3", "nan", "inf", "1s;", "١",
    ] {
        let call = configured()
            .args(["run", "--key", "k"])
            .arg(format!("--ttl={ttl}"));
        refused(64, call.args(["--", "true"]), &["--ttl"]);
    }
    let place = Place::embedded();
    for (ttl, milliseconds) in [
        ("1", "1000\n"),
        ("1s", "1000\n"),
        ("1.5s", "1500\n"),
        ("1.5", "1500\n"),
        ("10", "10000\n"),
        ("1m 30s", "90000\n"),
        ("30d", "2592000000\n"),
    ] {
        let run = place
            .run("k")
            .args(["--ttl", ttl])
            .job("echo $DBLOCK_TTL_MS")
            .run();
        run.code(0).stdout(milliseconds).quiet();
    }
}

#[test]
fn d11_times_that_do_not_fit_together() {
    for (ttl, kill_after) in [
        ("10s", "5s"),
        ("10s", "10s"),
        ("1s", "500ms"),
        ("30s", "1h"),
    ] {
        let call = configured().args(["run", "--key", "k", "--ttl", ttl]);
        let call = call.args(["--kill-after", kill_after, "--", "true"]);
        refused(64, call, &["--kill-after", kill_after, "--ttl", ttl]);
    }
    let place = Place::embedded();
    let fits = place
        .run("k")
        .args(["--ttl", "10s", "--kill-after", "4s", "--", "true"]);
    fits.run().code(0).quiet();
}

/// URLs that make no sense, some with a secret in them.
fn nonsense() -> Vec<String> {
    vec![
        "nonsense".to_owned(),
        "".to_owned(),
        "mysql://".to_owned(),
        "mysql://127.0.0.1".to_owned(),
        "sqlite:".to_owned(),
        format!("no-such-scheme://user:{PASSWORD}@127.0.0.1/locks"),
        format!("mysql://user:{PASSWORD}@127.0.0.1:notaport/locks"),
        format!("mysql://user:{PASSWORD}@127.0.0.1:99999/locks"),
        format!("mysql://user:{PASSWORD}@127.0.0.1/"),
        format!("mysql://user:{PASSWORD}@127.0.0.1/locks?no-such-parameter=1"),
        format!("mysql://user:{PASSWORD}#x@127.0.0.1/locks"),
    ]
}

#[test]
fn a_url_that_makes_no_sense_is_usage_on_the_command_line() {
    for url in nonsense() {
        refused(64, run().arg("--url").arg(&url).args(TRUE), &["--url"]);
    }
}

#[test]
fn a_url_that_makes_no_sense_is_configuration_in_the_environment() {
    for url in nonsense() {
        refused(
            78,
            run().env("DBLOCK_URL", &url).args(TRUE),
            &["DBLOCK_URL"],
        );
    }
    let bytes = OsStr::from_bytes(b"mysql://u@h/\xff");
    refused(
        78,
        run().env("DBLOCK_URL", bytes).args(TRUE),
        &["DBLOCK_URL"],
    );
}

/// Returns dblock, about to run a job, without any configuration; options and
/// the job follow.
fn run() -> Dblock {
    Dblock::unconfigured().args(["run", "--key", "k"])
}

const TRUE: [&str; 2] = ["--", "true"];

#[test]
fn nothing_configured_says_both_ways() {
    refused(78, run().args(TRUE), &["--local", "--url", "DBLOCK_URL"]);
    refused(
        78,
        Dblock::unconfigured().arg("status"),
        &["--local", "--url", "DBLOCK_URL"],
    );
}

#[test]
fn g8_a_named_file_that_cannot_be_read_is_an_error() {
    let place = Place::embedded();
    let missing = place.file("missing");
    let words = [missing.to_str().expect("UTF-8")];
    refused(78, run().arg("--config").arg(&missing).args(TRUE), &words);
    refused(78, run().env("DBLOCK_CONFIG", &missing).args(TRUE), &words);
    for file in [&missing, &PathBuf::from("/")] {
        let call = configured()
            .env_remove(PASSWORD_VARIABLE)
            .env("DBLOCK_PASSWORD_FILE", file);
        refused(
            78,
            call.args(["run", "--key", "k", "--", "true"]),
            &["DBLOCK_PASSWORD_FILE"],
        );
    }
}

#[test]
fn a_file_that_makes_no_sense_is_an_error() {
    let place = Place::embedded();
    let file = place.file("config.toml");
    for text in [
        "url = ",
        "url = 7\n",
        "no_such_setting = true\n",
        "url = 'nonsense'\n",
    ] {
        fs::write(&file, text).expect("the file can be written");
        let call = run().arg("--config").arg(&file).args(TRUE);
        refused(78, call, &[file.to_str().expect("UTF-8")]);
    }
}

/// Checks that `run` and `acquire` end with `status` before a job is started.
#[track_caller]
fn no_job(status: i32, url: &str, password: Option<&str>, words: &[&str]) {
    let place = Place::embedded();
    let marker = place.file("started");
    let call = || {
        let call = Dblock::unconfigured().env("DBLOCK_URL", url);
        match password {
            Some(password) => call.env(PASSWORD_VARIABLE, password),
            None => call,
        }
    };
    // Neither is silenced or renamed by what concerns "busy" alone.
    let run = call().args([
        "run",
        "--key",
        "k",
        "--quiet",
        "--busy-exit",
        "0",
        "--",
        "touch",
    ]);
    refused(status, run.arg(&marker), words);
    refused(status, call().args(["acquire", "--key", "k"]), words);
    assert!(!marker.exists(), "the job was started");
}

#[test]
fn a_database_without_tables_is_78_and_names_init() {
    let database = Database::without_tables(Server::shared());
    no_job(78, &database.url(), Some(PASSWORD), &["dblock init"]);
}

#[test]
fn denied_access_is_78() {
    let database = Database::new(Server::shared());
    let url = database.url();
    no_job(78, &url, Some("another"), &[database.user()]);
    no_job(78, &url, None, &[database.user()]);
    let url = format!(
        "mysql://nobody@127.0.0.1:{}/{}",
        database.server().port(),
        database.name()
    );
    no_job(78, &url, Some(PASSWORD), &["nobody"]);
}

#[test]
fn a_missing_database_is_78() {
    let database = Database::without_tables(Server::shared());
    let port = database.server().port();
    // Without any rights the server does not tell whether it is there.
    let url = format!("mysql://{}@127.0.0.1:{port}/no_such_db", database.user());
    no_job(78, &url, Some(PASSWORD), &["no_such_db"]);
    no_job(
        78,
        &format!("mysql://admin@127.0.0.1:{port}/no_such_db"),
        Some(PASSWORD),
        &["no_such_db"],
    );
}

#[test]
fn c4_no_server_is_69() {
    let port = free_port();
    let url = format!("mysql://user@127.0.0.1:{port}/locks");
    no_job(69, &url, Some(PASSWORD), &[&format!("127.0.0.1:{port}")]);

    let proxy = Proxy::start(free_port());
    proxy.refuse();
    let url = format!("mysql://user@127.0.0.1:{}/locks", proxy.port());
    no_job(
        69,
        &url,
        Some(PASSWORD),
        &[&format!("127.0.0.1:{}", proxy.port())],
    );
}

#[test]
fn f1_a_server_that_never_answers_is_69_within_the_limit() {
    let place = Place::mariadb();
    let proxy = Proxy::start(place.database().server().port());
    proxy.hold();
    let run = place
        .run("k")
        .env("DBLOCK_URL", place.database().url_at(proxy.port()));
    let run = run.args(["--connect-timeout", "1s", "--", "true"]).run();
    run.code(69)
        .stdout("")
        .one_line(&[])
        .took_at_most(Duration::from_secs(5));
    place.assert_free("k");
}
