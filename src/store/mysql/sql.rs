//! Every statement that dblock sends to MySQL or MariaDB.
//!
//! The text protocol with hexadecimal literals is used throughout: it needs no
//! second round trip for a prepared statement, and no `sql_mode` or character
//! set changes what `x'…'` means.

use std::fmt::Write;
use std::time::Duration;

use crate::lock::{
    BLOCK_SLOT, Claimant, Grant, Key, Owner, Phase, Request, Terms, Ttl, Waiter, to_millis,
};
use crate::store::{End, Revive, WAITER_FORGOTTEN};

/// The server's clock: milliseconds since 1970 UTC, the same in every session
/// time zone and in the hours when DST begins and ends, and constant within a
/// statement.
const NOW: &str = "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(3)) DIV 1000)";

/// Settings of a session. They only limit waits, undo what a server may
/// preset, and fix the character set of answers. They travel with each packet,
/// because some would change what a statement means: without `autocommit`
/// nothing would be committed, `sql_select_limit` and `max_join_size` would cut
/// answers short, and some modes take an empty text for a null or the
/// assignments of an UPDATE all at once.
pub(super) fn session(lock_wait_seconds: u64, idle_seconds: u64, reset_clock: bool) -> String {
    let clock = if reset_clock {
        "timestamp=DEFAULT, "
    } else {
        ""
    };
    format!(
        "SET SESSION autocommit=1, {clock}character_set_results=utf8mb4, \
         sql_mode='STRICT_ALL_TABLES', sql_select_limit=18446744073709551615, \
         sql_safe_updates=0, sql_big_selects=1, \
         innodb_lock_wait_timeout={lock_wait_seconds}, lock_wait_timeout={lock_wait_seconds}, \
         wait_timeout={idle_seconds}"
    )
}

/// Fails unless the account may release. Explaining a DELETE needs the same
/// rights as the DELETE, on the columns of its condition too, and touches,
/// locks and logs nothing.
pub(super) fn may_delete() -> String {
    "EXPLAIN DELETE FROM dblock_lock WHERE lock_key='' AND slot=0 AND owner_id='' AND token=0"
        .to_owned()
}

/// Asks for what [`super::schema::judge`] needs, in this order.
pub(super) fn describe_tables() -> [String; 4] {
    let here = "WHERE table_schema=DATABASE() AND table_name='dblock_lock'";
    [
        "SELECT value FROM dblock_meta WHERE name='schema_version'".to_owned(),
        format!("SELECT engine FROM information_schema.tables {here}"),
        format!(
            "SELECT column_name, data_type, column_type, character_maximum_length, \
             collation_name, is_nullable, extra FROM information_schema.columns {here}"
        ),
        format!(
            "SELECT index_name, non_unique, column_name, sub_part \
             FROM information_schema.statistics {here} ORDER BY index_name, seq_in_index"
        ),
    ]
}

/// Tells that the row stands in nobody's way. [`crate::lock::Moments::state`]
/// says the same. Differences stay in range whatever another program wrote.
fn is_free(terms: &Terms) -> String {
    let mut condition = format!("expire_at<={NOW}-delay_ms AND keep_until<={NOW}");
    if terms.once_per.is_some() {
        append(
            &mut condition,
            format_args!(" AND (state<>'done' OR done_until<={NOW})"),
        );
    }
    condition
}

/// Takes the slot if there is no row or one that stands in nobody's way, and
/// leaves any other as it is. One statement that takes exclusive locks from the
/// start: an INSERT followed by an UPDATE would deadlock with the DELETE of a
/// release.
///
/// The server draws the token before it has the row, so that somebody else may
/// be granted the slot, with a larger token, and release it in between. So the
/// statement is sent twice: the row is ours the second time, and if any number
/// was drawn since the first, a new token is. Otherwise, as nearly always, the
/// second changes nothing and costs no commit. What the first was granted is
/// told by `LAST_INSERT_ID()`, after [`forget_insert_id`].
pub(super) fn acquire(request: &Request, round: Round) -> String {
    let claimant = &request.claimant;
    let terms = &request.terms;
    let after = |length: Duration| format!("{NOW}+{}", to_millis(length));
    // What is not asked for must not begin to count when the clock is set back.
    let if_any = |length: Duration| match length {
        Duration::ZERO => "0".to_owned(),
        length => after(length),
    };
    let own = owner(&request.owner);
    let columns: [(&str, String); 16] = [
        ("owner_id", own.clone()),
        ("acquired_at", "UTC_TIMESTAMP(3)".to_owned()),
        ("renewals", "0".to_owned()),
        ("ttl_ms", request.ttl.as_millis().to_string()),
        ("slots", terms.slots.to_string()),
        ("kind", format!("'{}'", request.kind.as_str())),
        ("host", text(&claimant.host)),
        ("pid", claimant.pid.to_string()),
        ("user_name", text(&claimant.user)),
        ("command", text(&claimant.command)),
        ("note", optional(claimant.note.as_deref())),
        ("state", "'held'".to_owned()),
        ("delay_ms", to_millis(terms.lock_delay).to_string()),
        ("keep_until", if_any(terms.at_least)),
        ("done_until", if_any(terms.once_per.unwrap_or_default())),
        ("expire_at", after(request.ttl.get())),
    ];
    let mut taken = is_free(terms);
    if round == Round::Second {
        append(
            &mut taken,
            format_args!(
                " OR (token=LAST_INSERT_ID() AND owner_id={own} AND VALUES(token)<>token+1)"
            ),
        );
    }
    let mut names = String::from("lock_key,slot");
    let mut values = format!("{},{}", text(request.key.as_str()), request.slot);
    let mut updates = format!("token=IF({taken},LAST_INSERT_ID(VALUES(token)),token)");
    for (name, value) in &columns {
        append(&mut names, format_args!(",{name}"));
        append(&mut values, format_args!(",{value}"));
        // Assignments see the values that stand to their left. The number that
        // was drawn is nobody else's: where it stands, the row is taken.
        append(
            &mut updates,
            format_args!(",{name}=IF(token=VALUES(token),{value},{name})"),
        );
    }
    format!("INSERT INTO dblock_lock ({names}) VALUES ({values}) ON DUPLICATE KEY UPDATE {updates}")
}

/// Makes the session forget the last token that it was granted.
pub(super) fn forget_insert_id() -> String {
    "DO LAST_INSERT_ID(0)".to_owned()
}

/// Which of the two times [`acquire`] is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// Takes the slot.
    First,
    /// Takes it too if it has become free, and sees to the token.
    Second,
}

/// Extends the lease. It always changes `renewals`, so that a row which is
/// found counts as affected whatever the client flags are.
pub(super) fn renew(grant: &Grant, ttl: Ttl, revive: Revive) -> String {
    let alive = match revive {
        Revive::Allowed => String::new(),
        Revive::Refused => format!(" AND expire_at>{NOW}"),
    };
    let ttl = ttl.as_millis();
    format!(
        "UPDATE dblock_lock SET expire_at={NOW}+{ttl}, ttl_ms={ttl}, renewals=renewals+1 \
         WHERE {} AND state='held'{alive}",
        is(grant)
    )
}

/// Deletes the grant's row, unless its terms keep it shut for longer.
pub(super) fn release(grant: &Grant, end: End) -> String {
    let over = match end {
        End::Dropped => String::new(),
        End::Finished { succeeded: false } => format!(" AND keep_until<={NOW}"),
        End::Finished { succeeded: true } => {
            format!(" AND keep_until<={NOW} AND done_until<={NOW}")
        }
    };
    format!("DELETE FROM dblock_lock WHERE {}{over}", is(grant))
}

/// Ends the lease, and leaves the row, which its terms keep shut.
pub(super) fn close(grant: &Grant, succeeded: bool) -> String {
    let state = if succeeded {
        Phase::Done
    } else {
        Phase::Released
    };
    format!(
        "UPDATE dblock_lock SET state='{}', expire_at=LEAST(expire_at,{NOW}), delay_ms=0 \
         WHERE {} AND state='held'",
        state.as_str(),
        is(grant)
    )
}

/// Puts the block of a key into the table, or changes it.
pub(super) fn block(key: &Key, length: Option<Duration>, claimant: &Claimant) -> String {
    let until = match length {
        Some(length) => format!("{NOW}+{}", to_millis(length)),
        None => i64::MAX.to_string(),
    };
    let columns = [
        ("owner_id", owner(&Owner::generate())),
        ("acquired_at", "UTC_TIMESTAMP(3)".to_owned()),
        ("ttl_ms", "0".to_owned()),
        ("slots", "0".to_owned()),
        ("kind", "'block'".to_owned()),
        ("host", text(&claimant.host)),
        ("pid", claimant.pid.to_string()),
        ("user_name", text(&claimant.user)),
        ("command", "''".to_owned()),
        ("note", optional(claimant.note.as_deref())),
        ("state", "'blocked'".to_owned()),
        ("expire_at", until),
    ];
    let mut names = String::from("lock_key,slot");
    let mut values = format!("{},{BLOCK_SLOT}", text(key.as_str()));
    let mut updates = String::from("slot=slot");
    for (name, value) in &columns {
        append(&mut names, format_args!(",{name}"));
        append(&mut values, format_args!(",{value}"));
        append(&mut updates, format_args!(",{name}={value}"));
    }
    format!("INSERT INTO dblock_lock ({names}) VALUES ({values}) ON DUPLICATE KEY UPDATE {updates}")
}

/// Deletes the block of a key: one that has not ended by itself, and any.
pub(super) fn unblock(key: &Key) -> [String; 2] {
    let place = format!("lock_key={} AND slot={BLOCK_SLOT}", text(key.as_str()));
    [
        format!("DELETE FROM dblock_lock WHERE {place} AND expire_at>{NOW}"),
        format!("DELETE FROM dblock_lock WHERE {place}"),
    ]
}

/// Puts a waiter into the table, or shows that it is still there.
pub(super) fn show_waiter(waiter: &Waiter) -> String {
    format!(
        "INSERT INTO dblock_waiter (waiter_id, lock_key, since, seen, host, pid, user_name) \
         VALUES ({},{},{NOW}-{},{NOW},{},{},{}) ON DUPLICATE KEY UPDATE seen={NOW}",
        owner(&waiter.id),
        text(waiter.key.as_str()),
        to_millis(waiter.waiting),
        text(&waiter.host),
        waiter.pid,
        text(&waiter.user),
    )
}

/// Counts those who wait for a key, and those of them who came before.
pub(super) fn place(waiter: &Waiter) -> String {
    let key = text(waiter.key.as_str());
    let id = owner(&waiter.id);
    format!(
        "SELECT COUNT(*), COUNT(IF(place<(SELECT place FROM dblock_waiter WHERE waiter_id={id}),1,NULL)) \
         FROM dblock_waiter WHERE lock_key={key} AND {}",
        is_waiting()
    )
}

/// Selects those who wait for a key, or for any.
pub(super) fn waiters(key: Option<&Key>) -> String {
    let which = key.map_or_else(String::new, |key| {
        format!("lock_key={} AND ", text(key.as_str()))
    });
    format!(
        "SELECT waiter_id, lock_key, host, pid, user_name, GREATEST({NOW}-since,0) \
         FROM dblock_waiter WHERE {which}{} ORDER BY lock_key, place",
        is_waiting()
    )
}

fn is_waiting() -> String {
    format!("seen>{NOW}-{}", to_millis(WAITER_FORGOTTEN))
}

/// Waits in the server's queue for the user-level lock that stands for a key.
/// It is a hint, which no grant depends on. Its name holds a hash, because
/// names are short, and MySQL does not tell their letters' case apart;
/// user-level locks are those of the server and not of a database.
pub(super) fn queue(key: &Key, seconds: u64) -> String {
    format!("SELECT GET_LOCK({},{seconds})", baton(key))
}

/// Takes the lock of [`queue`] if nobody has it.
pub(super) fn take_baton(key: &Key) -> String {
    format!("DO GET_LOCK({},0)", baton(key))
}

/// Lets the next in the queue go on.
pub(super) fn pass_baton(key: &Key) -> String {
    format!("DO RELEASE_LOCK({})", baton(key))
}

fn baton(key: &Key) -> String {
    format!(
        "CONCAT('dblock:',LEFT(SHA2(CONCAT(DATABASE(),0x00,{}),256),32))",
        text(key.as_str())
    )
}

/// Deletes the rows that earlier attempts may have left under the key.
pub(super) fn forget(key: &Key, owners: &[Owner]) -> String {
    format!(
        "DELETE FROM dblock_lock WHERE lock_key={} AND owner_id IN ({})",
        text(key.as_str()),
        list(owners)
    )
}

/// Deletes waiters.
pub(super) fn forget_waiters(waiters: &[Owner]) -> String {
    format!(
        "DELETE FROM dblock_waiter WHERE waiter_id IN ({})",
        list(waiters)
    )
}

fn list(owners: &[Owner]) -> String {
    let owners: Vec<_> = owners.iter().map(owner).collect();
    owners.join(",")
}

/// Deletes a row by its owner alone, from a table whose keys cannot be relied
/// upon.
pub(super) fn delete_by_owner(owner_id: &Owner) -> String {
    format!("DELETE FROM dblock_lock WHERE owner_id={}", owner(owner_id))
}

/// Selects the rows of a key, or all rows, in the order in which
/// [`super::holder`] reads the columns.
pub(super) fn holders(key: Option<&Key>) -> String {
    let acquired = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',acquired_at) DIV 1000";
    let which = match key {
        Some(key) => format!("lock_key={}", text(key.as_str())),
        None => "lock_key<>''".to_owned(),
    };
    format!(
        "SELECT lock_key, slot, owner_id, token, state, GREATEST(expire_at,0)-{NOW}, delay_ms, \
         GREATEST(keep_until,0)-{NOW}, GREATEST(done_until,0)-{NOW}, {acquired}, \
         {NOW}-({acquired}), renewals, ttl_ms, slots, kind, host, pid, user_name, command, note \
         FROM dblock_lock WHERE {which} ORDER BY lock_key, slot"
    )
}

/// Returns the name of the table of locks as one writes it in any database and
/// any `sql_mode`.
pub(super) fn qualified_table(database: &str) -> String {
    format!("`{}`.dblock_lock", database.replace('`', "``"))
}

/// Fails (error 1242) unless the lease is held, and keeps the row from being
/// taken over until the transaction ends. The subquery returns one row if the
/// lease is held, and two if not; a condition would do for no server, because
/// each may work out what it does not need.
///
/// The lock is a shared one: it hinders who wants to change the row, and no
/// other transaction that asks the same. It must stand in the subquery, whose
/// tables an outer one does not lock.
pub(super) fn fence(table: &str, grant: &Grant) -> String {
    format!(
        "SELECT (SELECT n FROM (SELECT 1 AS n UNION ALL SELECT 0) AS one_or_two WHERE n>=\
         (SELECT COUNT(*) FROM {table} WHERE {} AND state='held' AND expire_at>{NOW} \
         LOCK IN SHARE MODE)) AS held",
        is(grant)
    )
}

/// Ends a connection, and with it the statement that it waits for. An account
/// may always end its own.
pub(super) fn kill(connection: u32) -> String {
    format!("KILL {connection}")
}

/// Creates the tables if they are missing, and lifts the token counter.
pub(super) fn create_tables() -> Vec<String> {
    statements(super::super::MYSQL_SCHEMA)
}

/// Lifts the token counter of tables that are there.
pub(super) fn lift_token() -> Vec<String> {
    create_tables()
        .into_iter()
        .filter(|statement| {
            statement.starts_with("INSERT INTO dblock_lock")
                || statement.starts_with("DELETE FROM dblock_lock")
        })
        .collect()
}

/// Splits the schema file into its statements, without its comments.
fn statements(schema: &str) -> Vec<String> {
    let code: Vec<_> = schema
        .lines()
        .map(|line| line.split(" -- ").next().unwrap_or_default())
        .filter(|line| !line.starts_with("--"))
        .collect();
    code.join("\n")
        .split(';')
        .map(|statement| statement.trim().to_owned())
        .filter(|statement| !statement.is_empty())
        .collect()
}

fn is(grant: &Grant) -> String {
    format!(
        "lock_key={} AND slot={} AND owner_id={} AND token={}",
        text(grant.key.as_str()),
        grant.slot,
        owner(&grant.owner),
        grant.token
    )
}

fn text(value: &str) -> String {
    format!("_utf8mb4 x'{}'", hex(value))
}

fn optional(value: Option<&str>) -> String {
    value.map_or_else(|| "NULL".to_owned(), text)
}

fn owner(value: &Owner) -> String {
    format!("_ascii x'{}'", hex(value.as_str()))
}

fn hex(value: &str) -> String {
    let mut digits = String::with_capacity(value.len() * 2);
    for byte in value.bytes() {
        append(&mut digits, format_args!("{byte:02x}"));
    }
    digits
}

/// Appends to a string, which cannot fail.
fn append(to: &mut String, what: std::fmt::Arguments<'_>) {
    let written = to.write_fmt(what);
    debug_assert!(written.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_file_splits_into_its_statements() {
        let starts: Vec<_> = create_tables()
            .iter()
            .map(|s| s.split(' ').take(4).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            starts,
            [
                "CREATE TABLE IF NOT",
                "CREATE TABLE IF NOT",
                "CREATE TABLE IF NOT",
                "INSERT INTO dblock_meta (name,",
                "INSERT INTO dblock_lock (lock_key,",
                "DELETE FROM dblock_lock WHERE",
            ]
        );
        assert!(create_tables().iter().all(|s| !s.contains("--")));
        assert_eq!(lift_token().len(), 2);
    }

    /// Assignments see the values that stand to their left.
    #[test]
    fn what_the_condition_reads_is_assigned_after_the_token() {
        let request = Request {
            key: Key::new("it's").expect("a key"),
            slot: 3,
            ttl: Ttl::new(Ttl::MIN).expect("a TTL"),
            terms: Terms {
                once_per: Some(Duration::from_secs(1)),
                ..Terms::default()
            },
            owner: Owner::generate(),
            former: Vec::new(),
            kind: crate::lock::Kind::Run,
            claimant: crate::lock::Claimant::default(),
        };
        for round in [Round::First, Round::Second] {
            let statement = acquire(&request, round);
            let update = statement.split("UPDATE ").nth(1).expect("an update part");
            let (first, rest) = update.split_once(",owner_id=").expect("both parts");
            assert!(first.starts_with("token=IF("), "{update}");
            for read in ["expire_at<=", "keep_until<=", "done_until<=", "state<>"] {
                assert!(first.contains(read) && !rest.contains(read), "{update}");
            }
            assert!(!statement.contains("it's"), "keys are hexadecimal");
        }
    }
}
