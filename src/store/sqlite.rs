//! Locks in a SQLite file: the embedded store, for one host.
//!
//! Its clock is the host's boot-time clock, which every process of the host
//! shares, which nobody can step and which runs on during suspend. Leases from
//! before the last boot are void, because no holder can have lived through it;
//! the boot is told by the kernel's `boot_id` (proc_sys_kernel(5)).
//!
//! Each operation is one IMMEDIATE transaction that reads the clock after it
//! has the write lock, so that processes see one order of events.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, Transaction, TransactionBehavior, params};

use super::url::{Secret, UrlError};
use super::{
    Acquired, Canceller, End, Endpoint, Initialized, Limits, Place, Released, Renewed, Revive,
    Store, StoreError, Turn, WAITER_FORGOTTEN, Waited,
};
use crate::clock::{self, Tick};
use crate::lock::{
    BLOCK_SLOT, Claimant, Grant, Holder, Key, Kind, Moments, Owner, Phase, Request, State, Token,
    Ttl, Waiter, to_millis,
};

/// Pages of the write-ahead log after which it is emptied.
const LOG_PAGES: i64 = 100;

/// The schema that this version reads and writes, kept in `user_version`.
const VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE dblock_lock (
  lock_key    TEXT NOT NULL,
  slot        INTEGER NOT NULL DEFAULT 0,
  owner_id    TEXT NOT NULL,
  token       INTEGER NOT NULL,           -- fencing token
  boot_id     TEXT NOT NULL,              -- the boot that expire_at counts from
  expire_at   INTEGER NOT NULL,           -- milliseconds since boot
  acquired_at INTEGER NOT NULL,           -- milliseconds since 1970 UTC, for people; never compared
  granted_at  INTEGER NOT NULL,           -- milliseconds since boot
  renewals    INTEGER NOT NULL DEFAULT 0,
  ttl_ms      INTEGER NOT NULL,
  slots       INTEGER NOT NULL DEFAULT 1,
  kind        TEXT NOT NULL,              -- 'run' or 'acquire'
  host        TEXT NOT NULL,
  pid         INTEGER NOT NULL,
  user_name   TEXT NOT NULL,
  command     TEXT NOT NULL,
  note        TEXT,
  state       TEXT NOT NULL DEFAULT 'held', -- 'held', 'released', 'done' or 'blocked'
  delay_ms    INTEGER NOT NULL DEFAULT 0, -- so much longer nobody is granted an expired lease
  keep_until  INTEGER NOT NULL DEFAULT 0, -- until then nobody is granted the slot, like expire_at
  done_until  INTEGER NOT NULL DEFAULT 0, -- until then a success counts, milliseconds since 1970 UTC
  PRIMARY KEY (lock_key, slot)
) WITHOUT ROWID;
-- Who waits, for people to see. No row here decides anything.
CREATE TABLE dblock_waiter (
  place       INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of arrival
  waiter_id   TEXT NOT NULL UNIQUE,
  lock_key    TEXT NOT NULL,
  boot_id     TEXT NOT NULL,
  since       INTEGER NOT NULL,           -- milliseconds since boot
  seen        INTEGER NOT NULL,           -- likewise; who has not been seen for long has gone
  host        TEXT NOT NULL,
  pid         INTEGER NOT NULL,
  user_name   TEXT NOT NULL
);
CREATE TABLE dblock_counter (
  token INTEGER NOT NULL                  -- the last token that was granted
);
-- Tokens start at the present time in microseconds, so that they stay above
-- all earlier ones if the file was removed and made again.
INSERT INTO dblock_counter VALUES (CAST(unixepoch('subsec') * 1000000 AS INTEGER));
";

/// What every SELECT of rows returns, in the order in which [`holder`] reads.
const COLUMNS: &str = "lock_key, slot, owner_id, token, boot_id, expire_at, acquired_at, \
                       granted_at, renewals, ttl_ms, slots, kind, host, pid, user_name, command, note, \
                       state, delay_ms, keep_until, \
                       done_until - CAST(unixepoch('subsec') * 1000 AS INTEGER)";

/// A file that holds locks.
#[derive(Debug)]
struct File(PathBuf);

/// Understands the part of a `sqlite:` URL behind the colon: a path.
pub(super) fn endpoint(rest: &str, _: Option<Secret>) -> Result<Box<dyn Endpoint>, UrlError> {
    if rest.is_empty() {
        return Err(UrlError::new("the path is missing: expected sqlite:PATH"));
    }
    // `sqlite://name` looks as if `name` were a host, and `//name` as a path
    // is `/name`: neither is what was meant.
    if rest.starts_with("//") && !rest.starts_with("///") {
        return Err(UrlError::new(
            "a relative path is written sqlite:PATH, an absolute one sqlite:/PATH",
        ));
    }
    Ok(file(PathBuf::from(rest)))
}

/// Returns the endpoint of the file `path`.
pub(super) fn file(path: PathBuf) -> Box<dyn Endpoint> {
    Box::new(File(path))
}

impl Endpoint for File {
    fn open(&self, limits: Limits) -> Box<dyn Store> {
        Box::new(SqliteStore {
            path: self.0.clone(),
            limits,
            open: None,
            bell: None,
            hush: EventFd::new().ok().map(Arc::new),
            shown_at: None,
        })
    }
}

#[derive(Debug)]
struct SqliteStore {
    path: PathBuf,
    limits: Limits,
    open: Option<Open>,
    bell: Option<Bell>,
    /// Ends a wait.
    hush: Option<Arc<EventFd>>,
    /// When the waiter last put itself into the table.
    shown_at: Option<Tick>,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    boot_id: String,
}

/// The store's moment, read inside a transaction.
struct Now<'a> {
    boot_id: &'a str,
    millis: u64,
}

impl SqliteStore {
    /// Runs `work` as [`Self::transaction`] does, unless there is no file: to
    /// look for a row makes none. The answer is `nothing` then.
    fn look<T>(
        &mut self,
        nothing: T,
        work: impl FnOnce(&Transaction<'_>, &Now<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        if self.open.is_none() && matches!(self.path.try_exists(), Ok(false)) {
            return Ok(nothing);
        }
        self.transaction(work)
    }

    /// Runs `work` in a transaction that holds the write lock, and commits it.
    fn transaction<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>, &Now<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        if self.open.is_none() {
            self.open = Some(open(&self.path, self.limits.call)?.0);
        }
        let Some(Open {
            connection,
            boot_id,
        }) = self.open.as_mut()
        else {
            return Err(unavailable(&self.path, "it did not open"));
        };
        let done = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let now = Now {
                boot_id,
                millis: to_millis(clock::now().since_boot()),
            };
            let answer = work(&transaction, &now)?;
            transaction.commit()?;
            Ok(answer)
        })();
        done.map_err(|error| {
            // Whatever went wrong: the next call starts from a new connection.
            self.open = None;
            fault(&self.path, &error)
        })
    }
}

impl SqliteStore {
    /// Shows that the waiter is there, unless it did so lately: each write
    /// wakes all who wait.
    fn show(&mut self, waiter: &Waiter) -> Result<Option<Place>, StoreError> {
        if self
            .shown_at
            .is_some_and(|at| clock::now() - at < WAITER_FORGOTTEN / 9)
        {
            return Ok(None);
        }
        let place = self.transaction(|transaction, now| {
            let millis = signed(now.millis);
            transaction
                .prepare_cached(
                    "INSERT INTO dblock_waiter (waiter_id, lock_key, boot_id, since, seen, host, pid, \
                     user_name) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
                     ON CONFLICT (waiter_id) DO UPDATE SET seen = ?5",
                )?
                .execute(params![
                    waiter.id.as_str(),
                    waiter.key.as_str(),
                    now.boot_id,
                    millis - signed(to_millis(waiter.waiting)),
                    millis,
                    waiter.host,
                    waiter.pid,
                    waiter.user,
                ])?;
            transaction
                .prepare_cached(
                    "SELECT count(*), count(*) FILTER (WHERE place < \
                     (SELECT place FROM dblock_waiter WHERE waiter_id = ?1)) \
                     FROM dblock_waiter WHERE lock_key = ?2 AND boot_id = ?3 AND seen > ?4",
                )?
                .query_row(
                    params![
                        waiter.id.as_str(),
                        waiter.key.as_str(),
                        now.boot_id,
                        millis - signed(to_millis(WAITER_FORGOTTEN)),
                    ],
                    |row| {
                        Ok(Place {
                            waiting: unsigned(row, 0)?,
                            ahead: unsigned(row, 1)?,
                        })
                    },
                )
        })?;
        self.shown_at = Some(clock::now());
        Ok(Some(place))
    }
}

impl Store for SqliteStore {
    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError> {
        self.transaction(|transaction, now| {
            delete_owners(transaction, &request.key, &request.former)?;
            let rows = select(transaction, now, Some(&request.key))?;
            let terms = &request.terms;
            if rows
                .iter()
                .any(|row| row.grant.slot == request.slot && row.state.excludes(terms))
            {
                return Ok(Acquired::Busy(rows));
            }
            let token = next_token(transaction)?;
            let ttl = request.ttl.as_millis();
            let claimant = &request.claimant;
            transaction
                .prepare_cached(
                    "REPLACE INTO dblock_lock (lock_key, slot, owner_id, token, boot_id, expire_at, \
                     acquired_at, granted_at, ttl_ms, slots, kind, host, pid, user_name, command, \
                     note, delay_ms, keep_until, done_until) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, CAST(unixepoch('subsec') * 1000 AS INTEGER), \
                     ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, \
                     iif(?18 = 0, 0, CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?18))",
                )?
                .execute(params![
                    request.key.as_str(),
                    request.slot,
                    request.owner.as_str(),
                    signed(token),
                    now.boot_id,
                    signed(now.millis + ttl),
                    signed(now.millis),
                    signed(ttl),
                    terms.slots,
                    request.kind.as_str(),
                    claimant.host,
                    claimant.pid,
                    claimant.user,
                    claimant.command,
                    claimant.note,
                    signed(to_millis(terms.lock_delay)),
                    match terms.at_least {
                        Duration::ZERO => 0,
                        length => signed(now.millis + to_millis(length)),
                    },
                    signed(to_millis(terms.once_per.unwrap_or_default())),
                ])?;
            let grant = Grant {
                key: request.key.clone(),
                slot: request.slot,
                owner: request.owner.clone(),
                token: Token(token),
            };
            Ok(Acquired::granted(grant, request, rows))
        })
    }

    fn renew(&mut self, grant: &Grant, ttl: Ttl, revive: Revive) -> Result<Renewed, StoreError> {
        self.look(Renewed::Lost(Vec::new()), |transaction, now| {
            let expires_after = match revive {
                Revive::Allowed => i64::MIN,
                Revive::Refused => signed(now.millis),
            };
            let changed = transaction
                .prepare_cached(
                    "UPDATE dblock_lock SET expire_at = ?5, ttl_ms = ?6, renewals = renewals + 1 \
                     WHERE lock_key = ?1 AND slot = ?2 AND owner_id = ?3 AND token = ?4 \
                     AND boot_id = ?7 AND expire_at > ?8 AND state = 'held'",
                )?
                .execute(params![
                    grant.key.as_str(),
                    grant.slot,
                    grant.owner.as_str(),
                    signed(grant.token.0),
                    signed(now.millis + ttl.as_millis()),
                    signed(ttl.as_millis()),
                    now.boot_id,
                    expires_after,
                ])?;
            if changed == 0 {
                return select(transaction, now, Some(&grant.key)).map(Renewed::Lost);
            }
            Ok(Renewed::Extended)
        })
    }

    fn release(&mut self, grant: &Grant, end: End) -> Result<Released, StoreError> {
        self.look(Released::NotHeld, |transaction, now| {
            let (keeps, succeeded) = match end {
                End::Finished { succeeded } => (true, succeeded),
                End::Dropped => (false, false),
            };
            let own = params![
                grant.key.as_str(),
                grant.slot,
                grant.owner.as_str(),
                signed(grant.token.0),
                now.boot_id,
                signed(now.millis),
                keeps,
                succeeded,
            ];
            let gone = transaction
                .prepare_cached(
                    "DELETE FROM dblock_lock \
                     WHERE lock_key = ?1 AND slot = ?2 AND owner_id = ?3 AND token = ?4 \
                     AND (NOT ?7 OR ((boot_id <> ?5 OR keep_until <= ?6) AND (NOT ?8 OR \
                     done_until <= CAST(unixepoch('subsec') * 1000 AS INTEGER))))",
                )?
                .execute(own)?;
            let closed = transaction
                .prepare_cached(
                    "UPDATE dblock_lock SET state = iif(?8, 'done', 'released'), \
                     expire_at = min(expire_at, ?6), delay_ms = 0 \
                     WHERE lock_key = ?1 AND slot = ?2 AND owner_id = ?3 AND token = ?4 \
                     AND ?5 = ?5 AND ?7 AND state = 'held'",
                )?
                .execute(own)?;
            Ok(if gone + closed == 0 {
                Released::NotHeld
            } else {
                Released::Released
            })
        })
    }

    fn wait(&mut self, waiter: &Waiter, limit: Duration) -> Result<Waited, StoreError> {
        let place = self.show(waiter)?;
        let answer = |turn| Ok(Waited { turn, place });
        let Some(bell) = &self.bell else {
            // What was written before it hangs was not heard.
            let hush = self.hush.clone();
            self.bell = hush.and_then(|hush| Bell::hang(&self.path, hush));
            return answer(if self.bell.is_some() {
                Turn::Look
            } else {
                Turn::NoQueue
            });
        };
        bell.listen(limit.min(WAITER_FORGOTTEN / 3));
        answer(Turn::Look)
    }

    fn waiters(&mut self, key: Option<&Key>) -> Result<Vec<Waiter>, StoreError> {
        self.look(Vec::new(), |transaction, now| {
            transaction
                .prepare_cached(
                    "SELECT waiter_id, lock_key, host, pid, user_name, ?1 - since \
                     FROM dblock_waiter WHERE (?2 IS NULL OR lock_key = ?2) \
                     AND boot_id = ?3 AND seen > ?4 ORDER BY lock_key, place",
                )?
                .query_map(
                    params![
                        signed(now.millis),
                        key.map(Key::as_str),
                        now.boot_id,
                        signed(now.millis) - signed(to_millis(WAITER_FORGOTTEN)),
                    ],
                    |row| {
                        Ok(Waiter {
                            id: Owner::from_store(row.get(0)?),
                            key: Key::from_store(row.get(1)?),
                            host: row.get(2)?,
                            pid: row.get(3)?,
                            user: row.get(4)?,
                            waiting: Duration::from_millis(unsigned(row, 5)?),
                        })
                    },
                )?
                .collect()
        })
    }

    fn block(
        &mut self,
        key: &Key,
        length: Option<Duration>,
        claimant: &Claimant,
    ) -> Result<(), StoreError> {
        self.transaction(|transaction, now| {
            let token = next_token(transaction)?;
            let until = length.map_or(i64::MAX, |length| signed(now.millis + to_millis(length)));
            // A block without an end outlives the boot.
            let boot = if length.is_some() { now.boot_id } else { "" };
            transaction
                .prepare_cached(
                    "REPLACE INTO dblock_lock (lock_key, slot, owner_id, token, boot_id, expire_at, \
                     acquired_at, granted_at, ttl_ms, slots, kind, host, pid, user_name, command, \
                     note, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, \
                     CAST(unixepoch('subsec') * 1000 AS INTEGER), ?7, 0, 0, 'block', ?8, ?9, ?10, \
                     '', ?11, 'blocked')",
                )?
                .execute(params![
                    key.as_str(),
                    BLOCK_SLOT,
                    Owner::generate().as_str(),
                    signed(token),
                    boot,
                    until,
                    signed(now.millis),
                    claimant.host,
                    claimant.pid,
                    claimant.user,
                    claimant.note,
                ])?;
            Ok(())
        })
    }

    fn unblock(&mut self, key: &Key) -> Result<bool, StoreError> {
        self.look(false, |transaction, now| {
            let rows = select(transaction, now, Some(key))?;
            transaction
                .prepare_cached("DELETE FROM dblock_lock WHERE lock_key = ?1 AND slot = ?2")?
                .execute(params![key.as_str(), BLOCK_SLOT])?;
            Ok(rows.iter().any(|row| row.state == State::Blocked))
        })
    }

    fn canceller(&self) -> Option<Box<dyn Canceller>> {
        let hush = self.hush.clone()?;
        Some(Box::new(Hush(hush)))
    }

    fn forget(&mut self, key: &Key, owners: &[Owner]) -> Result<(), StoreError> {
        self.look((), |transaction, _| delete_owners(transaction, key, owners))
    }

    fn holders(&mut self, key: Option<&Key>) -> Result<Vec<Holder>, StoreError> {
        self.look(Vec::new(), |transaction, now| select(transaction, now, key))
    }

    fn init(&mut self) -> Result<Initialized, StoreError> {
        let (open, state) = open(&self.path, self.limits.call)?;
        self.open = Some(open);
        Ok(state)
    }
}

/// Opens the file, making it and its tables if they are missing.
fn open(path: &Path, patience: Duration) -> Result<(Open, Initialized), StoreError> {
    if let Some(folder) = path.parent()
        && !folder.as_os_str().is_empty()
    {
        fs::create_dir_all(folder).map_err(|error| {
            StoreError::Denied(format!(
                "cannot create the folder {} of the lock file: {error}",
                folder.display()
            ))
        })?;
    }
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|error| unavailable(path, &format!("the kernel tells no boot id: {error}")))?
        .trim()
        .to_owned();
    prepare(path, patience)
        .map(|(connection, state)| {
            let open = Open {
                connection,
                boot_id,
            };
            (open, state)
        })
        .map_err(|error| fault(path, &error))
        .and_then(|(open, state)| match state {
            Ok(state) => Ok((open, state)),
            Err(0) => Err(StoreError::Schema(format!(
                "{} is the database of another program",
                path.display()
            ))),
            Err(newer) => Err(StoreError::Schema(format!(
                "the lock file {} is of schema version {newer}, and this dblock knows versions \
                 up to {VERSION}: install a newer dblock",
                path.display()
            ))),
        })
}

/// Returns a connection to a file with the right tables, and whether they were
/// made just now, or their version if it is not known.
fn prepare(
    path: &Path,
    patience: Duration,
) -> rusqlite::Result<(Connection, Result<Initialized, i64>)> {
    // SQLite takes some names for other things than files, which would exclude
    // nobody: a name with a folder before it is none of them.
    let named = Path::new(".").join(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(named, flags)?;
    connection.busy_timeout(patience)?;
    // A journal mode that is set already costs no write.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Every process is the last one for a moment. It need not empty the log
    // each time: that takes as long as all the rest. A short log keeps the
    // next opening fast instead.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    let version = |connection: &Connection| {
        connection.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))
    };
    let mut found = version(&connection)?;
    let mut state = Initialized::Unchanged;
    if found == 0 {
        // Another process may be at the same; the write lock decides.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        found = version(&transaction)?;
        let others: i64 =
            transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if found == 0 && others == 0 {
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            found = VERSION;
            state = Initialized::Created;
        }
        transaction.commit()?;
    }
    let state = if found == VERSION {
        Ok(state)
    } else {
        Err(found)
    };
    Ok((connection, state))
}

fn next_token(transaction: &Transaction<'_>) -> rusqlite::Result<u64> {
    transaction.query_row(
        "UPDATE dblock_counter SET token = token + 1 RETURNING token",
        [],
        |row| unsigned(row, 0),
    )
}

fn delete_owners(
    transaction: &Transaction<'_>,
    key: &Key,
    owners: &[Owner],
) -> rusqlite::Result<()> {
    for owner in owners {
        transaction
            .prepare_cached("DELETE FROM dblock_lock WHERE lock_key = ?1 AND owner_id = ?2")?
            .execute(params![key.as_str(), owner.as_str()])?;
        transaction
            .prepare_cached("DELETE FROM dblock_waiter WHERE waiter_id = ?1")?
            .execute(params![owner.as_str()])?;
    }
    Ok(())
}

fn select(
    transaction: &Transaction<'_>,
    now: &Now<'_>,
    key: Option<&Key>,
) -> rusqlite::Result<Vec<Holder>> {
    match key {
        Some(key) => transaction
            .prepare_cached(&format!(
                "SELECT {COLUMNS} FROM dblock_lock WHERE lock_key = ?1 ORDER BY slot"
            ))?
            .query_map(params![key.as_str()], |row| holder(row, now))?
            .filter_map(Result::transpose)
            .collect(),
        None => transaction
            .prepare_cached(&format!(
                "SELECT {COLUMNS} FROM dblock_lock ORDER BY lock_key, slot"
            ))?
            .query_map([], |row| holder(row, now))?
            .filter_map(Result::transpose)
            .collect(),
    }
}

/// Reads a row, or nothing if it means nothing any more.
fn holder(row: &Row<'_>, now: &Now<'_>) -> rusqlite::Result<Option<Holder>> {
    let boot_id: String = row.get(4)?;
    // A block without an end is of no boot.
    let counts = boot_id == now.boot_id || boot_id.is_empty();
    let from_now = |column| -> rusqlite::Result<i64> {
        let moment = row.get::<_, i64>(column)?.max(0);
        Ok(if counts {
            moment.saturating_sub(signed(now.millis))
        } else {
            0
        })
    };
    let moments = Moments {
        phase: Phase::from_store(&row.get::<_, String>(17)?),
        lease: from_now(5)?,
        delay: if counts { row.get(18)? } else { 0 },
        keep: from_now(19)?,
        done: row.get(20)?,
    };
    let Some((state, remaining)) = moments.state() else {
        return Ok(None);
    };
    let held = if counts {
        Duration::from_millis(now.millis.saturating_sub(unsigned(row, 7)?))
    } else {
        Duration::ZERO
    };
    Ok(Some(Holder {
        grant: Grant {
            key: Key::from_store(row.get(0)?),
            slot: row.get(1)?,
            owner: Owner::from_store(row.get(2)?),
            token: Token(unsigned(row, 3)?),
        },
        state,
        kind: Kind::from_store(&row.get::<_, String>(11)?),
        slots: row.get(10)?,
        claimant: Claimant {
            host: row.get(12)?,
            pid: row.get(13)?,
            user: row.get(14)?,
            command: row.get(15)?,
            note: row.get(16)?,
        },
        acquired_at: Some(row.get(6)?),
        held,
        remaining: Duration::from_millis(remaining),
        ttl: Duration::from_millis(unsigned(row, 9)?),
        renewals: unsigned(row, 8)?,
    }))
}

/// Rings when anybody writes to the file: a watch on the write-ahead log
/// (inotify(7)).
#[derive(Debug)]
struct Bell {
    watch: Inotify,
    hush: Arc<EventFd>,
}

impl Bell {
    /// Returns a bell, or nothing if the system has no watch to give.
    fn hang(path: &Path, hush: Arc<EventFd>) -> Option<Self> {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let watch = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok()?;
        watch
            .add_watch(Path::new(&log), AddWatchFlags::IN_MODIFY)
            .ok()?;
        Some(Self { watch, hush })
    }

    /// Returns when it has rung since the last time, or after `limit`, or when
    /// the wait is cancelled.
    fn listen(&self, limit: Duration) {
        let mut fds = [
            PollFd::new(self.watch.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.hush.as_fd(), PollFlags::POLLIN),
        ];
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        // Whatever ended it, the caller looks.
        poll(&mut fds, limit).ok();
        self.watch.read_events().ok();
    }
}

/// Ends the wait for a bell.
#[derive(Debug)]
struct Hush(Arc<EventFd>);

impl Canceller for Hush {
    fn cancel(&self) {
        self.0.write(1).ok();
    }
}

/// SQLite's integers are signed; a negative one in these columns is nonsense
/// and counts as zero, which expires a lease.
fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column)
        .map(|number| u64::try_from(number).unwrap_or(0))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unavailable(path: &Path, why: &str) -> StoreError {
    StoreError::Unavailable(format!(
        "cannot use the lock file {}: {why}",
        path.display()
    ))
}

/// What an error of SQLite means. A transaction that did not commit is rolled
/// back by whoever opens the file next, so only a failed commit could leave a
/// doubt.
fn fault(path: &Path, error: &rusqlite::Error) -> StoreError {
    let file = path.display();
    let code = match error {
        rusqlite::Error::SqliteFailure(failure, _) => Some(failure.code),
        _ => None,
    };
    match code {
        Some(ErrorCode::Unknown) if error.to_string().contains("no such ") => StoreError::Schema(
            format!("the tables in the lock file {file} are not as they should be: {error}"),
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StoreError::Transient(format!("the lock file {file} is busy: {error}"))
        }
        Some(ErrorCode::ReadOnly) => {
            StoreError::ReadOnly(format!("the lock file {file} is read-only: {error}"))
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            StoreError::Denied(format!("cannot open the lock file {file}: {error}"))
        }
        Some(ErrorCode::NotADatabase) => {
            StoreError::Schema(format!("{file} is not a lock file of dblock: {error}"))
        }
        _ if matches!(
            error,
            rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
        ) =>
        {
            StoreError::Schema(format!(
                "a row in the lock file {file} holds nonsense: {error}"
            ))
        }
        _ => unavailable(path, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_urls() {
        assert!(endpoint("locks.db", None).is_ok());
        assert!(endpoint("/a/locks.db", None).is_ok());
        assert!(endpoint("///a/locks.db", None).is_ok());
        assert!(endpoint("//a/locks.db", None).is_err());
        assert!(endpoint("", None).is_err());
    }

    #[test]
    fn names_that_are_no_files_to_sqlite_are_files_here() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [":memory:", "file:x?mode=memory"] {
            let path = folder.path().join(name);
            let limit = Duration::from_secs(5);
            assert!(open(&path, limit).is_ok());
            assert!(path.exists(), "{name}");
        }
        assert_eq!(Path::new(".").join(":memory:"), Path::new("./:memory:"));
    }

    #[test]
    fn the_database_of_another_program_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("other.db");
        let other = Connection::open(&path).expect("a database");
        other.execute_batch("CREATE TABLE t (x)").expect("a table");
        let refused = open(&path, Duration::from_secs(5)).map(|_| ());
        assert!(matches!(refused, Err(StoreError::Schema(_))), "{refused:?}");
        other
            .execute_batch("PRAGMA user_version = 1")
            .expect("a version");
        let refused = file(path)
            .open(Limits::for_command(Duration::from_secs(5)))
            .holders(None);
        assert!(matches!(refused, Err(StoreError::Schema(_))), "{refused:?}");
    }

    #[test]
    fn a_lease_from_before_the_last_boot_is_void() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("locks.db");
        let limits = Limits::for_command(Duration::from_secs(5));
        let mut store = SqliteStore {
            path: path.clone(),
            limits,
            open: None,
            bell: None,
            hush: None,
            shown_at: None,
        };
        let ask = |owner: Owner| Request {
            key: Key::new("k").expect("a key"),
            slot: 0,
            terms: crate::lock::Terms::default(),
            ttl: Ttl::new(Ttl::MAX).expect("a TTL"),
            owner,
            former: Vec::new(),
            kind: Kind::Run,
            claimant: Claimant::default(),
        };
        let granted = store.acquire(&ask(Owner::generate())).expect("an answer");
        assert!(matches!(granted, Acquired::Granted(_)));
        let busy = store.acquire(&ask(Owner::generate())).expect("an answer");
        assert!(matches!(busy, Acquired::Busy(_)));
        Connection::open(&path)
            .and_then(|c| c.execute("UPDATE dblock_lock SET boot_id = 'an earlier one'", []))
            .expect("an update");
        let rows = store.holders(None).expect("rows");
        assert_eq!(rows[0].state, State::Expired);
        let granted = store.acquire(&ask(Owner::generate())).expect("an answer");
        assert!(matches!(granted, Acquired::Granted(_)));
    }
}
