//! Several hosts, and one that changes its role, its address or its rows:
//! dblock goes on where it may write, and never takes a failure for an answer.

use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use nix::unistd::geteuid;

use crate::support::database::Database;
use crate::support::dblock::{Dblock, Output};
use crate::support::outcome::status;
use crate::support::place::{Place, THIEF};
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::running::Running;
use crate::support::server::{Server, free_port};
use crate::support::users::skipped;
use crate::support::wait;

/// A server that nobody but an administrator may write to.
static READ_ONLY: LazyLock<Server> = LazyLock::new(|| Server::start_with(&["--read-only"]));

/// A job of a shell and a child, both deaf to TERM; both print their ids.
const DEAF_TREE: &str = "trap '' TERM; echo $$; sleep 60 & echo $!; wait; :";

/// The time for a connection, where it matters.
const CONTACT: Duration = Duration::from_secs(2);

/// What a busy machine may add to a documented time.
fn generous(limit: Duration) -> Duration {
    limit * 2 + Duration::from_secs(2)
}

/// Returns a call of dblock with other hosts than the place's own.
fn at(call: Dblock, url: &str) -> Dblock {
    call.env("DBLOCK_URL", url)
}

/// Returns the owners and the renewals of a database's rows.
fn rows(database: &Database<'_>) -> Vec<(String, u64)> {
    let rows = database.query("SELECT owner_id, renewals FROM dblock_lock ORDER BY lock_key");
    rows.into_iter()
        .map(|row| (row[0].clone(), row[1].parse().expect("a number")))
        .collect()
}

/// Waits until a job's row on this database has been renewed once more.
#[track_caller]
fn wait_for_renewal(database: &Database<'_>, running: &Running) {
    let before = rows(database);
    assert_eq!(before.len(), 1, "{before:?}");
    wait::until("a renewal", || {
        let now = rows(database);
        if now.len() == 1 && now[0].0 == before[0].0 && now[0].1 > before[0].1 {
            return Ok(());
        }
        Err(format!("{now:?}; {}", running.facts()))
    });
}

/// Waits for this many more connections through a proxy.
#[track_caller]
fn wait_for_connections(proxy: &Proxy, more: usize, running: &Running) {
    let before = proxy.connections();
    wait::until("connections", || match proxy.connections() - before {
        new if new >= more => Ok(()),
        new => Err(format!("{new} of {more}; {}", running.facts())),
    });
}

// Read-only hosts.

/// Checks that neither `run` nor `acquire` gets anywhere at this URL, that the
/// reason is named, and that this is told soon.
#[track_caller]
fn assert_read_only(place: &Place<'_>, url: &str) {
    let marker = place.file("started");
    for patience in [&["--no-wait"][..], &["--wait", "60s"]] {
        let run = at(place.run("k"), url).args(patience);
        let run = run.args(["--", "touch"]).arg(&marker).run();
        run.code(78)
            .stdout("")
            .one_line(&["read-only"])
            .took_at_most(generous(Duration::from_secs(5)));
        let acquire = place.dblock().args(["acquire", "--key", "k"]);
        let acquire = at(acquire, url).args(patience).run();
        acquire.code(78).stdout("").one_line(&["read-only"]);
    }
    assert!(!marker.exists(), "the job was started");
    place.assert_free("k");
}

#[test]
fn f4_a_read_only_server_is_named_and_starts_no_job() {
    let place = Place::on(&READ_ONLY);
    assert_read_only(&place, &place.url());
}

#[test]
fn f4_that_all_hosts_are_read_only_is_said() {
    let place = Place::on(&READ_ONLY);
    let proxies = [(); 3].map(|()| Proxy::start(READ_ONLY.port()));
    let ports = proxies.each_ref().map(Proxy::port);
    assert_read_only(&place, &place.database().url_over(&ports));
    for proxy in proxies {
        // Two calls of each of two commands, and none asks twice.
        assert_eq!(proxy.connections(), 4);
    }
}

#[test]
fn f4_a_read_only_host_is_left_for_one_that_may_be_written_to() {
    let place = Place::mariadb();
    let database = place.database();
    let replica = database.twin(&READ_ONLY);
    let ports = [replica.server().port(), database.server().port()];
    let url = database.url_over(&ports);
    let run = at(place.run("k"), &url).args(["--", "true"]).run();
    run.code(0).quiet();

    let acquire = place.dblock().args(["acquire", "--key", "k"]);
    let acquire = at(acquire, &url).args(["--ttl", "60s"]).run();
    let owner = acquire.code(0).quiet().text().trim_end().to_owned();
    assert_eq!(rows(database), [(owner.clone(), 0)]);
    assert_eq!(rows(&replica), []);

    // The replica knows of the grant by now. What changes it goes on to where
    // that is possible.
    database.replicate(&replica);
    let by_hand = |command: &str| {
        let call = place.dblock().args([command, "--key", "k"]);
        at(call, &url).args(["--owner", &owner])
    };
    by_hand("renew").run().code(0).quiet();
    assert_eq!(rows(database), [(owner.clone(), 1)]);
    by_hand("release").run().code(0).quiet();
    assert_eq!(rows(database), []);
    assert_eq!(rows(&replica), [(owner, 0)]);
}

fn set_read_only(server: &Server, read_only: bool) {
    let value = u8::from(read_only);
    server.execute(&format!("SET GLOBAL read_only={value}"));
}

#[test]
fn f4_a_job_survives_a_while_in_which_its_server_is_read_only() {
    let server = Server::start();
    let place = Place::on(&server);
    let proxy = Proxy::start(server.port());
    let gate = place.gate();
    let url = place.database().url_at(proxy.port());
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let run = at(place.run("k"), &url).args(["--ttl", "12s"]);
    let mut running = run.job(&job).start();
    running.job();
    set_read_only(&server, true);
    // Each refusal ends a connection. With pauses of 400 ms this takes more
    // than two seconds.
    wait_for_connections(&proxy, 7, &running);
    running.assert_running();
    set_read_only(&server, false);
    wait_for_renewal(place.database(), &running);
    gate.open();
    let output = running.wait().code(5);
    let lines: Vec<_> = output.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "one warning and its end: {lines:?}");
    assert!(lines[0].contains("read-only"), "{lines:?}");
    assert!(lines[1].contains("works again"), "{lines:?}");
    place.assert_free("k");

    // Who has no lease to lose is told at once.
    set_read_only(&server, true);
    assert_read_only(&place, &place.url());
    set_read_only(&server, false);
    place.run("k").args(["--", "true"]).run().code(0).quiet();
    place.assert_free("k");
}

/// The job ends while the server is read-only. dblock has two limits of a call
/// to release the row, which is more than the server needs here.
#[test]
fn f4_a_row_is_released_when_its_server_may_be_written_to_again() {
    let server = Server::start();
    let place = Place::on(&server);
    let proxy = Proxy::start(server.port());
    let gate = place.gate();
    let url = place.database().url_at(proxy.port());
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let run = at(place.run("k"), &url).args(["--ttl", "30s"]);
    let mut running = run.job(&job).start();
    running.job();
    set_read_only(&server, true);
    let connections = proxy.connections();
    gate.open();
    wait::until("the release to be tried again", || {
        let again = proxy.connections() >= connections + 2;
        if again || !running.process().is_alive() {
            return Ok(());
        }
        Err(running.facts())
    });
    set_read_only(&server, false);
    running.wait().code(5).quiet();
    place.assert_free("k");
}

#[test]
fn f4_a_run_moves_to_the_host_that_was_promoted() {
    let (first, second) = (Server::start(), Server::start_with(&["--read-only"]));
    let place = Place::on(&first);
    let old = place.database();
    let new = old.twin(&second);
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let url = old.url_over(&[first.port(), second.port()]);
    let run = at(place.run("k"), &url).args(["--ttl", "9s"]);
    let mut running = run.job(&job).start();
    running.job();
    first.execute("SET GLOBAL read_only=1");
    old.replicate(&new);
    second.execute("SET GLOBAL read_only=0");
    wait_for_renewal(&new, &running);
    gate.open();
    // The first refusal is no incident, because the next attempt works.
    running.wait().code(5).quiet();
    assert_eq!(rows(&new), []);
    assert_eq!(rows(old).len(), 1, "the demoted host was not written to");
}

// Hosts that are down.

#[test]
fn the_second_host_is_used_when_the_first_is_down() {
    let place = Place::mariadb();
    let port = place.database().server().port();
    let (refusing, silent) = (Proxy::start(port), Proxy::start(port));
    refusing.refuse();
    silent.hold();
    let bad = [free_port(), refusing.port(), silent.port()];
    let lists = [
        vec![bad[0]],
        vec![bad[1]],
        vec![bad[2]],
        vec![bad[0], bad[1], bad[2]],
        vec![bad[2], bad[2]],
    ];
    for mut ports in lists {
        ports.push(port);
        let url = place.database().url_over(&ports);
        let run = at(place.run("k"), &url).args(["--connect-timeout", "2s"]);
        let run = run.args(["--", "true"]).run();
        run.code(0).quiet().took_at_most(generous(CONTACT));
        place.assert_free("k");
    }
    // The silent one delivers at last what it was sent, to nobody's harm.
    silent.pass();
    place.run("k").args(["--", "true"]).run().code(0).quiet();
    place.assert_free("k");
}

#[test]
fn that_no_host_answers_is_told_in_time() {
    let place = Place::mariadb();
    let proxies = [(); 3].map(|()| Proxy::start(place.database().server().port()));
    for proxy in &proxies {
        proxy.hold();
    }
    let ports = proxies.each_ref().map(Proxy::port);
    let url = place.database().url_over(&ports);
    let marker = place.file("started");
    let run = at(place.run("k"), &url).args(["--connect-timeout", "2s"]);
    let run = run.args(["--", "touch"]).arg(&marker).run();
    let run = run.code(69).took_at_most(generous(CONTACT));
    run.one_line(&["no answer"]);
    assert!(!marker.exists(), "the job was started");
    place.assert_free("k");
}

/// Runs a job through two ways to one server, takes the first away after it
/// was used, and returns what dblock says, once its lease was renewed through
/// the other.
#[track_caller]
fn the_first_way_is_lost(ttl: &str, lose: impl FnOnce(&Proxy)) -> Output {
    let place = Place::mariadb();
    let port = place.database().server().port();
    let ways = [Proxy::start(port), Proxy::start(port)];
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let url = place.database().url_over(&ways.each_ref().map(Proxy::port));
    let run = at(place.run("k"), &url).args(["--ttl", ttl]);
    let mut running = run.job(&job).start();
    running.job();
    assert_eq!(ways.each_ref().map(Proxy::connections), [1, 0]);
    lose(&ways[0]);
    wait::until("a renewal", || match place.rows("k").first() {
        Some(row) if row.renewals > 0 => Ok(()),
        row => {
            running.assert_running();
            Err(format!("{row:?}; {}", running.facts()))
        }
    });
    gate.open();
    let output = running.wait();
    assert_eq!(ways[1].connections(), 1);
    place.assert_free("k");
    output.code(5)
}

#[test]
fn a_run_goes_on_through_the_second_host_when_the_first_dies() {
    the_first_way_is_lost("9s", Proxy::refuse).quiet();
}

/// A network that loses every packet costs a call until it is noticed. The
/// lease must have room for that and for an attempt elsewhere.
#[test]
fn a_run_goes_on_through_the_second_host_when_the_first_falls_silent() {
    the_first_way_is_lost("10s", Proxy::hold);
}

/// The same for a release, which has the time of two calls.
#[test]
fn a_row_is_released_through_the_second_host_when_the_first_falls_silent() {
    let place = Place::mariadb();
    let port = place.database().server().port();
    let ways = [Proxy::start(port), Proxy::start(port)];
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let url = place.database().url_over(&ways.each_ref().map(Proxy::port));
    let run = at(place.run("k"), &url).args(["--ttl", "30s"]);
    let mut running = run.job(&job).start();
    running.job();
    ways[0].hold();
    gate.open();
    running.wait().code(5).quiet();
    place.assert_free("k");
}

#[test]
fn the_job_is_dead_before_the_lease_ends_when_every_host_dies() {
    let place = Place::mariadb();
    let port = place.database().server().port();
    let ways = [Proxy::start(port), Proxy::start(port)];
    let url = place.database().url_over(&ways.each_ref().map(Proxy::port));
    let run = at(place.run("k"), &url).args(["--ttl", "3s"]);
    let mut running = run.job(DEAF_TREE).start();
    let tree = running.processes(2);
    place.wait_for_renewal("k");
    ways[0].hold();
    ways[1].refuse();
    let before = place.row("k");
    let left = wait::until("the job to die", || {
        // In this order: what is dead now was dead when the store is asked.
        let alive = tree.iter().any(|process| process.is_alive());
        match (alive, place.left_ms("k")) {
            (false, left) => Ok(left),
            (true, left) => Err(format!("it lives, {left} ms left")),
        }
    });
    assert!(left > 0, "the lease had expired {} ms before", -left);
    assert_eq!(place.row("k"), before, "nothing has reached the server");
    running.wait().code(76).says(&["\"k\""]);
}

// Names.

/// Files that one call sees in place of the system's.
struct Names {
    hosts: PathBuf,
    resolver: PathBuf,
}

impl Names {
    /// Fails unless the tests may give a process a file system of its own.
    fn new(place: &Place<'_>) -> Result<Self, String> {
        if !geteuid().is_root() {
            return Err("only root can give a process names of its own".to_owned());
        }
        let names = Self {
            hosts: place.file("hosts"),
            resolver: place.file("resolv.conf"),
        };
        for file in [&names.hosts, &names.resolver] {
            fs::write(file, "").expect("the file can be written");
        }
        let tried = Dblock::program("unshare").args(["--mount", "true"]).run();
        match status(&tried) {
            0 => Ok(names),
            _ => Err(format!("no file system of its own: {}", tried.stderr)),
        }
    }

    /// Says what `db.test` is. The file stays the same, since it is mounted.
    fn set(&self, addresses: &[&str]) {
        let lines: String = addresses
            .iter()
            .map(|address| format!("{address} db.test\n"))
            .collect();
        fs::write(&self.hosts, lines).expect("the table can be written");
    }

    /// Says who else is asked for names.
    fn ask(&self, server: &str) {
        let line = format!("nameserver {server}\n");
        fs::write(&self.resolver, line).expect("the file can be written");
    }

    /// Returns `dblock run --key k` as it sees the names; options and `--`
    /// follow.
    fn run(&self, place: &Place<'_>) -> Dblock {
        let script = "mount --bind \"$0\" /etc/hosts && mount --bind \"$1\" /etc/resolv.conf && \
                      shift && exec dblock run --key k \"$@\"";
        let call = place.shell("exec unshare --mount sh -c \"$@\"");
        call.args(["sh", script])
            .arg(&self.hosts)
            .arg(&self.resolver)
    }
}

#[test]
fn a_name_with_several_addresses_leads_to_the_one_that_listens() {
    let (four, six) = (
        Server::shared(),
        Server::start_with(&["--bind-address=::1"]),
    );
    for server in [four, &six] {
        let place = Place::on(server);
        let names = match Names::new(&place) {
            Ok(names) => names,
            Err(why) => return skipped(&why),
        };
        let run = place.run("k").args(["--", "true"]).run();
        run.code(0).quiet();
        let url = place
            .database()
            .url_of(&format!("db.test:{}", server.port()));
        for addresses in [["127.0.0.1", "::1"], ["::1", "127.0.0.1"]] {
            names.set(&addresses);
            let run = at(names.run(&place), &url);
            run.args(["--", "true"]).run().code(0).quiet();
        }
        place.assert_free("k");
    }
}

#[test]
fn f4_a_name_is_looked_up_anew_for_each_connection() {
    let first = Server::start();
    let moved = [
        "--bind-address=127.0.0.2",
        &format!("--port={}", first.port()),
    ];
    let second = Server::start_with(&moved);
    let place = Place::on(&first);
    let names = match Names::new(&place) {
        Ok(names) => names,
        Err(why) => return skipped(&why),
    };
    let new = place.database().twin(&second);
    let gate = place.gate();
    let url = place
        .database()
        .url_of(&format!("db.test:{}", first.port()));
    names.set(&["127.0.0.1"]);
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let run = at(names.run(&place), &url);
    let mut running = run.args(["--ttl", "9s"]).job(&job).start();
    running.job();
    place.database().replicate(&new);
    first.kill();
    names.set(&["127.0.0.2"]);
    wait_for_renewal(&new, &running);
    gate.open();
    running.wait().code(5).quiet();
    assert_eq!(rows(&new), []);

    // Of several addresses the one that is up is used, wherever it stands.
    for addresses in [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"]] {
        names.set(&addresses);
        let run = at(names.run(&place), &url);
        run.args(["--", "true"]).run().code(0).quiet();
    }
    names.set(&[]);
    let run = at(names.run(&place), &url);
    let run = run.args(["--connect-timeout", "2s", "--", "true"]).run();
    run.code(69)
        .one_line(&["db.test"])
        .took_at_most(generous(CONTACT));
}

/// Takes questions for names and never answers. If somebody else listens here
/// already, that is another run of this test.
fn silent_name_server() -> (&'static str, Option<UdpSocket>) {
    const ADDRESS: &str = "127.53.53.53";
    match UdpSocket::bind((ADDRESS, 53)) {
        Ok(socket) => (ADDRESS, Some(socket)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => (ADDRESS, None),
        Err(error) => panic!("no port for a name server: {error}"),
    }
}

/// A name server that loses its packets makes a lookup take ten seconds.
#[test]
fn a_name_that_nobody_answers_for_leaves_time_for_the_next_host() {
    let place = Place::mariadb();
    let names = match Names::new(&place) {
        Ok(names) => names,
        Err(why) => return skipped(&why),
    };
    let (address, _socket) = silent_name_server();
    names.ask(address);
    let port = place.database().server().port();
    let alone = place.database().url_of(&format!("db.test:{port}"));
    let run = at(names.run(&place), &alone).args(["--connect-timeout", "2s"]);
    run.args(["--", "true"])
        .run()
        .code(69)
        .one_line(&[])
        .took_at_least(CONTACT)
        .took_at_most(generous(CONTACT));
    let both = format!("db.test:{port},127.0.0.1:{port}");
    let run = at(names.run(&place), &place.database().url_of(&both));
    let run = run.args(["--connect-timeout", "2s", "--", "true"]).run();
    run.code(0).quiet().took_at_most(generous(CONTACT));
}

// Rows that a promoted replica does not have.

fn assert_dead(tree: &[Process]) {
    let alive: Vec<_> = tree.iter().filter(|process| process.is_alive()).collect();
    assert!(alive.is_empty(), "{alive:?}");
}

#[test]
fn f5_a_missing_row_is_lost_and_never_made_again() {
    let place = Place::mariadb();
    let run = place.run("k").args(["--ttl", "6s"]);
    let mut first = run.job(DEAF_TREE).start();
    let tree = first.processes(2);
    let before = place.row("k");
    place.delete("k");
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 4", gate.wait());
    let mut second = place.run("k").job(&job).start();
    second.job();
    let successor = place.row("k");
    assert!(successor.token > before.token, "{successor:?}");
    first.wait().code(76).one_line(&["\"k\""]);
    assert_dead(&tree);
    assert_eq!(place.row("k").owner, successor.owner);
    gate.open();
    second.wait().code(4).quiet();
    place.assert_free("k");
}

#[test]
fn f5_an_older_row_of_its_own_is_extended() {
    let place = Place::mariadb();
    let gate = place.gate();
    let job = format!("echo $$; {}; exit 5", gate.wait());
    let run = place.run("k").args(["--ttl", "9s"]);
    let mut first = run.job(&job).start();
    let holder = first.job();
    let before = place.wait_for_renewal("k");
    place.query("UPDATE dblock_lock SET expire_at = expire_at - 3000, renewals = renewals - 1");
    let mut second = place
        .run("k")
        .args(["--wait", "60s"])
        .job("echo $$; exit 4")
        .start();
    let renewed = wait::until("a renewal", || match place.row("k") {
        row if row.expire_at > before.expire_at => Ok(row),
        row => Err(format!("{row:?}; {}", first.facts())),
    });
    assert_eq!((renewed.owner, renewed.token), (before.owner, before.token));
    assert!(holder.is_alive());
    gate.open();
    first.wait().code(5).quiet();
    second.lines(1);
    assert_dead(&[holder]);
    second.wait().code(4);
    place.assert_free("k");
}

/// The commits that are missing are the release of an earlier holder and the
/// grant of the present one.
#[test]
fn f5_the_row_of_an_earlier_owner_is_left_alone() {
    let place = Place::mariadb();
    let run = place.run("k").args(["--ttl", "6s"]);
    let mut first = run.job(DEAF_TREE).start();
    let tree = first.processes(2);
    place.query(&format!(
        "UPDATE dblock_lock SET owner_id = '{THIEF}', token = token - 1, renewals = 0"
    ));
    let earlier = place.row("k");
    let mut second = place
        .run("k")
        .args(["--wait", "60s"])
        .job("echo $$; exit 4")
        .start();
    wait::until("the loss", || {
        if first.process().is_alive() {
            assert_eq!(place.row("k"), earlier);
            return Err(first.facts());
        }
        Ok(())
    });
    first.wait().code(76).one_line(&["\"k\""]);
    second.lines(1);
    assert_dead(&tree);
    second.wait().code(4);
    place.assert_free("k");
}
