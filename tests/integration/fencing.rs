//! A job that checks its token at each write: what `docs/fencing.md` shows,
//! with the holder that was stopped for longer than its lease.

use mysql::prelude::Queryable as _;
use mysql::{Conn, Error};
use nix::sys::signal::Signal::{SIGCONT, SIGSTOP};

use crate::support::place::Place;
use crate::support::running::Running;
use crate::support::wait;

/// Error 1242: the subquery of the statement returns two rows.
const NOT_HELD: u16 = 1242;

/// Starts a run of `k` whose job prints its token and the statement, and
/// returns both.
#[track_caller]
fn holder(place: &Place, ttl: &str, gate: &str) -> (Running, u64, String) {
    let job = format!("echo $DBLOCK_TOKEN; dblock check --print-sql; {gate}");
    let mut running = place.run("k").args(["--ttl", ttl]).job(&job).start();
    let mut lines = running.lines(2);
    let sql = lines.remove(1);
    let token = lines[0].parse().expect("a token");
    (running, token, sql)
}

#[track_caller]
fn assert_refused(answer: Result<Vec<mysql::Row>, Error>) {
    match answer {
        Err(Error::MySqlError(error)) => assert_eq!(error.code, NOT_HELD, "{error}"),
        other => panic!("not refused: {other:?}"),
    }
}

/// Counts the statements of dblock's that have begun with this word, and are
/// not done for so long that they must be waiting for something.
fn waiting_for_the_row(word: &str) -> String {
    format!(
        "SELECT COUNT(*) FROM information_schema.processlist \
         WHERE info LIKE '{word}%dblock_lock%' AND time_ms>100 AND id<>CONNECTION_ID()"
    )
}

fn table(place: &Place) -> Conn {
    place.query("CREATE TABLE account (id INT PRIMARY KEY, amount INT, fence BIGINT UNSIGNED NOT NULL DEFAULT 0) ENGINE=InnoDB");
    place.query("INSERT INTO account (id, amount) VALUES (1, 0)");
    place.database().connect()
}

/// The rows that the conditional UPDATE of the document changes.
fn write(connection: &mut Conn, token: u64, amount: i32) -> u64 {
    let sql =
        format!("UPDATE account SET amount={amount}, fence={token} WHERE id=1 AND fence<={token}");
    connection.query_drop(sql).expect("the statement is right");
    connection.affected_rows()
}

#[test]
fn a_stale_holder_s_write_finds_a_larger_token() {
    let place = Place::mariadb();
    let mut connection = table(&place);
    let (stale, old, _) = holder(&place, "2s", "sleep 60");
    assert_eq!(write(&mut connection, old, 1), 1);
    stale.signal(SIGSTOP);
    let gate = place.gate();
    let job = format!("echo $DBLOCK_TOKEN; {}", gate.wait());
    let mut next = place.run("k").args(["--wait", "20s"]).job(&job).start();
    let new: u64 = next.lines(1)[0].parse().expect("a token");
    assert!(new > old);
    assert_eq!(write(&mut connection, new, 2), 1);
    assert_eq!(
        write(&mut connection, old, 3),
        0,
        "what was on its way for too long"
    );
    assert_eq!(write(&mut connection, new, 4), 1);
    assert_eq!(place.query("SELECT amount FROM account"), [["4"]]);
    stale.signal(SIGCONT);
    stale.wait().code(76);
    gate.open();
    next.wait().code(0).quiet();
}

#[test]
fn the_statement_holds_in_every_mode_and_fails_without_the_lease() {
    let place = Place::mariadb();
    let gate = place.gate();
    let (running, _, sql) = holder(&place, "60s", &gate.wait());
    let owner = place.row("k").owner;
    let by_hand = place
        .dblock()
        .args(["check", "--key", "k", "--owner", &owner, "--print-sql"]);
    by_hand.run().code(0).stdout(format!("{sql}\n")).quiet();
    let name = place.database().name().to_owned();
    let server = place.database().server();
    let modes = [
        "",
        "ANSI",
        "ORACLE",
        "MAXDB",
        "TRADITIONAL",
        "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
        "PAD_CHAR_TO_FULL_LENGTH,ONLY_FULL_GROUP_BY,NO_UNSIGNED_SUBTRACTION",
    ];
    let ask = |mode: &str| {
        // From another database, with another character set and time zone.
        let mut connection = server.connect().expect("a connection");
        connection
            .query_drop(format!(
                "SET sql_mode='{mode}', time_zone='+09:00', NAMES latin1"
            ))
            .or_else(|_| {
                connection.query_drop(format!("SET sql_mode='{mode}', time_zone='+09:00'"))
            })
            .expect("a mode");
        connection.query_drop("USE mysql").expect("a database");
        connection
            .query_drop("START TRANSACTION")
            .expect("a transaction");
        let answer: Result<Vec<mysql::Row>, Error> = connection.query(&sql);
        connection.query_drop("ROLLBACK").expect("an end");
        answer
    };
    for mode in modes {
        let rows = ask(mode).unwrap_or_else(|error| panic!("{mode}: {error}"));
        assert_eq!(rows.len(), 1, "{mode}");
        assert_eq!(rows[0].get::<i64, _>(0), Some(1), "{mode}");
    }
    let before = |sql: &str| {
        place.query(&format!(
            "UPDATE {name}.dblock_lock SET {sql} WHERE lock_key='k'"
        ))
    };
    for (wrong, right) in [
        ("token=token+1", "token=token-1"),
        ("state='released'", "state='held'"),
        ("expire_at=expire_at-600000", "expire_at=expire_at+600000"),
        ("slot=slot+1", "slot=slot-1"),
    ] {
        before(wrong);
        for mode in modes {
            assert_refused(ask(mode));
        }
        before(right);
        ask("").expect("held again");
    }
    place.steal("k");
    for mode in modes {
        assert_refused(ask(mode));
    }
    gate.open();
    running.wait().code(0);
}

#[test]
fn nobody_takes_over_between_the_statement_and_the_commit() {
    let place = Place::mariadb();
    let mut connection = table(&place);
    let (stale, _, sql) = holder(&place, "2s", "sleep 60");
    connection
        .query_drop("START TRANSACTION")
        .expect("a transaction");
    connection
        .query_drop("UPDATE account SET amount=7 WHERE id=1")
        .expect("a write");
    let held: Vec<mysql::Row> = connection.query(&sql).expect("it is held");
    assert_eq!(held.len(), 1);
    // From here on nobody renews, and the lease runs out.
    stale.signal(SIGSTOP);
    wait::until("the lease to expire", || {
        let left = place.left_ms("k");
        if left < 0 {
            Ok(())
        } else {
            Err(format!("{left} ms left"))
        }
    });
    let mut waiting = place
        .run("k")
        .args(["--wait", "20s"])
        .job("echo granted")
        .start();
    place.wait_until_reached_by(&waiting);
    let attempts = waiting_for_the_row("INSERT");
    wait::until("an attempt to wait for the row", || {
        let waiting = place.query(&attempts);
        if waiting == [["0"]] {
            Err(format!("{waiting:?}"))
        } else {
            Ok(())
        }
    });
    waiting.assert_running();
    connection.query_drop("COMMIT").expect("a commit");
    waiting.lines(1);
    // The next transaction of the stale holder is refused, and undone.
    connection
        .query_drop("START TRANSACTION")
        .expect("a transaction");
    connection
        .query_drop("UPDATE account SET amount=8 WHERE id=1")
        .expect("a write");
    assert_refused(connection.query(&sql));
    connection.query_drop("ROLLBACK").expect("an end");
    assert_eq!(place.query("SELECT amount FROM account"), [["7"]]);
    stale.signal(SIGCONT);
    stale.wait().code(76);
    waiting.wait().code(0);
}

/// The document says to ask last: then a long transaction hinders no renewal.
#[test]
fn renewals_wait_for_the_row_only_behind_the_statement() {
    let place = Place::mariadb();
    let mut connection = table(&place);
    let gate = place.gate();
    let (running, _, sql) = holder(&place, "3s", &gate.wait());
    connection
        .query_drop("START TRANSACTION")
        .expect("a transaction");
    connection
        .query_drop("UPDATE account SET amount=7 WHERE id=1")
        .expect("a write");
    place.wait_for_renewal("k");
    place.wait_for_renewal("k");
    connection.query_drop(&sql).expect("it is held");
    let renewals = waiting_for_the_row("UPDATE");
    wait::until("a renewal to wait for the row", || {
        let waiting = place.query(&renewals);
        if waiting == [["0"]] {
            Err(format!("{waiting:?}"))
        } else {
            Ok(())
        }
    });
    connection.query_drop("COMMIT").expect("a commit");
    place.wait_for_renewal("k");
    gate.open();
    running.wait().code(0);
}

#[test]
fn two_transactions_may_ask_at_once() {
    let place = Place::mariadb();
    let gate = place.gate();
    let (running, _, sql) = holder(&place, "60s", &gate.wait());
    let mut connections = [place.database().connect(), place.database().connect()];
    for connection in &mut connections {
        connection
            .query_drop("SET innodb_lock_wait_timeout=1")
            .expect("a limit");
        connection
            .query_drop("START TRANSACTION")
            .expect("a transaction");
        connection.query_drop(&sql).expect("it is held");
    }
    gate.open();
    drop(connections);
    running.wait().code(0);
}

#[test]
fn the_embedded_store_has_no_such_statement() {
    let place = Place::embedded();
    let job = "dblock check --print-sql";
    let output = place.run("k").job(job).run().code(78).stdout("");
    output.one_line(&["--print-sql needs a lock in MySQL or MariaDB"]);
}

/// What the document says of the newest MariaDB's default.
#[test]
fn a_snapshot_from_before_a_renewal_is_refused_where_the_server_checks_it() {
    let place = Place::mariadb();
    table(&place);
    let gate = place.gate();
    let (running, _, sql) = holder(&place, "3s", &gate.wait());
    let mut connection = place.database().connect();
    connection
        .query_drop("SET innodb_snapshot_isolation=ON")
        .expect("MariaDB 10.6.18 and later have it");
    for (level, works) in [("READ COMMITTED", true), ("REPEATABLE READ", false)] {
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}");
        connection.query_drop(begin).expect("a level");
        connection
            .query_drop("START TRANSACTION")
            .expect("a transaction");
        let seen = "SELECT (SELECT COUNT(*) FROM dblock_lock), (SELECT COUNT(*) FROM account)";
        connection.query_drop(seen).expect("a snapshot");
        place.wait_for_renewal("k");
        match connection.query_drop(&sql) {
            Ok(()) => assert!(works, "{level}"),
            Err(Error::MySqlError(error)) => {
                assert_eq!((works, error.code), (false, 1020), "{error}")
            }
            Err(error) => panic!("{error}"),
        }
        connection.query_drop("ROLLBACK").expect("an end");
    }
    gate.open();
    running.wait().code(0);
}
