//! Keys, passwords and where the settings come from.

use std::fs;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::support::dblock::{Dblock, PROGRAM};
use crate::support::on_every_store;
use crate::support::place::Place;
use crate::support::{PASSWORD, PASSWORD_VARIABLE};

on_every_store!(
    g4_keys_of_different_bytes_are_different_locks,
    g7_credentials_stay_with_dblock,
    g7_credentials_are_passed_on_request,
    g8_cron_is_no_login_shell,
);

fn g4_keys_of_different_bytes_are_different_locks(place: &Place) {
    for (held, other) in [
        ("report", "Report"),
        ("resume", "résumé"),
        ("a", "a\u{200b}"),
        ("ss", "ß"),
        ("A", "Ａ"),
        ("😀", "😁"),
        ("e\u{301}", "é"),
        ("k'", "k''"),
        ("k\\", "k\\\\"),
        ("100%", "100_"),
    ] {
        let acquire = |key: &str| {
            place
                .dblock()
                .arg("acquire")
                .arg(format!("--key={key}"))
                .run()
        };
        let owner = acquire(held).code(0).quiet().text().trim_end().to_owned();
        place
            .dblock()
            .args(["run", "--key", other, "--", "true"])
            .run()
            .code(0)
            .quiet();
        place
            .dblock()
            .args(["run", "--key", held, "--", "true"])
            .run()
            .code(75);
        place.dblock().args(["status", other]).run().code(77);
        place.dblock().args(["status", held]).run().code(0);
        let release = |key: &str| {
            place
                .dblock()
                .arg("release")
                .arg(format!("--key={key}"))
                .args(["--owner", &owner])
                .run()
        };
        release(other).code(77);
        release(held).code(0).quiet();
    }
}

/// The job shows what it has in its environment.
fn shown(place: &Place, options: &[&str]) -> String {
    let secret = place.file("secret");
    fs::write(&secret, PASSWORD).expect("the file can be written");
    let mut shown = String::new();
    // One of the two at a time, as people do it.
    for in_file in [false, true] {
        let run = place.run("k").args(options).may_show_the_secret();
        let run = if in_file {
            run.env_remove(PASSWORD_VARIABLE)
                .env("DBLOCK_PASSWORD_FILE", &secret)
        } else {
            run.env(PASSWORD_VARIABLE, PASSWORD)
        };
        let output = run.args(["--", "env"]).run().code(0).quiet();
        shown.push_str(output.text());
    }
    shown
}

const CREDENTIALS: [&str; 4] = [
    "DBLOCK_URL=",
    "DBLOCK_PASSWORD=",
    "DBLOCK_PASSWORD_FILE=",
    PASSWORD,
];

fn g7_credentials_stay_with_dblock(place: &Place) {
    let shown = shown(place, &[]);
    for word in CREDENTIALS {
        assert!(!shown.contains(word), "{word:?} in {shown}");
    }
    assert!(shown.contains("DBLOCK_KEY=k\n"), "{shown}");
    // At no level of output either; the call itself checks that.
    place
        .run("k")
        .args(["--verbose", "--", "true"])
        .run()
        .code(0);
}

fn g7_credentials_are_passed_on_request(place: &Place) {
    let shown = shown(place, &["--pass-credentials"]);
    for word in CREDENTIALS {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
}

#[test]
fn g7_the_password_is_not_in_the_command_line() {
    let place = Place::mariadb();
    let gate = place.gate();
    let mut running = place
        .run("k")
        .job(&format!("echo $$; {}", gate.wait()))
        .start();
    let job = running.job();
    for pid in [running.pid().to_string(), job.pid().to_string()] {
        let line = fs::read(format!("/proc/{pid}/cmdline")).expect("the process is there");
        assert!(!String::from_utf8_lossy(&line).contains(PASSWORD));
    }
    gate.open();
    running.wait().code(0).quiet();
}

fn g8_cron_is_no_login_shell(place: &Place) {
    let script = "env -i DBLOCK_URL=\"$DBLOCK_URL\" DBLOCK_PASSWORD=\"$DBLOCK_PASSWORD\" \
                  \"$PROGRAM\" run --key \"$(date +k-%F)\" -- /bin/echo ran";
    let run = place.shell(script).env("PROGRAM", PROGRAM).run();
    run.code(0).stdout("ran\n").quiet();
    let homeless = place
        .run("k")
        .env("HOME", "/no/such/home")
        .args(["--", "true"]);
    homeless.run().code(0).quiet();
}

#[test]
fn g6_every_password_works() {
    let place = Place::mariadb();
    let database = place.database();
    let (name, user, port) = (database.name(), database.user(), database.server().port());
    let secret = place.file("secret");
    for password in [
        "p#w", "p?w", "p@w:1/x", "p%w", "p%41w", "ä", "p w", " ", "'\"\\", "",
    ] {
        let quoted = password.replace('\\', "\\\\").replace('\'', "\\'");
        database
            .server()
            .execute(&format!("ALTER USER {user}@'%' IDENTIFIED BY '{quoted}'"));
        let run = || Dblock::unconfigured().args(["run", "--key", "k"]);
        let url = database.url();
        let plain = run()
            .env("DBLOCK_URL", &url)
            .env(PASSWORD_VARIABLE, password);
        plain.args(["--", "true"]).run().code(0).quiet();

        let encoded = utf8_percent_encode(password, NON_ALPHANUMERIC);
        let with = format!("mysql://{user}:{encoded}@127.0.0.1:{port}/{name}");
        run()
            .env("DBLOCK_URL", &with)
            .args(["--", "true"])
            .run()
            .code(0)
            .quiet();
        run()
            .args(["--url", &with, "--", "true"])
            .run()
            .code(0)
            .quiet();

        // Editors end a file with a newline, which is not part of the secret.
        for end in ["", "\n", "\r\n"] {
            fs::write(&secret, format!("{password}{end}")).expect("the file can be written");
            let file = run()
                .env("DBLOCK_URL", &url)
                .env("DBLOCK_PASSWORD_FILE", &secret);
            file.args(["--", "true"]).run().code(0).quiet();
        }
    }
}

#[test]
fn the_first_that_is_given_says_where_the_lock_lives() {
    let places = [(); 3].map(|()| Place::embedded());
    let urls = places.each_ref().map(Place::url);
    let config = places[0].file("config.toml");
    fs::write(&config, format!("url = '{}'\n", urls[2])).expect("the file can be written");
    let home = places[0].file("xdg");
    fs::create_dir_all(home.join("dblock")).expect("the directory can be made");
    fs::copy(&config, home.join("dblock/config.toml")).expect("the file can be copied");

    let acquire = || Dblock::unconfigured().args(["acquire", "--key", "k"]);
    let by_file = || acquire().env("DBLOCK_CONFIG", &config);
    let by_variable = || by_file().env("DBLOCK_URL", &urls[1]);
    for (call, expected) in [
        (by_variable().args(["--url", &urls[0]]), 0),
        (by_variable(), 1),
        (by_file(), 2),
        (acquire().arg("--config").arg(&config), 2),
        (acquire().env("XDG_CONFIG_HOME", &home), 2),
    ] {
        call.run().code(0).quiet();
        let held = places.iter().position(|place| !place.rows("k").is_empty());
        assert_eq!(held, Some(expected));
        places[expected].delete("k");
    }
}
