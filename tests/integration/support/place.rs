//! Where the lock lives. Most of what dblock promises holds for every store,
//! so most tests run on each of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::time::{ClockId, clock_gettime};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode};
use tempfile::TempDir;

use super::database::Database;
use super::dblock::Dblock;
use super::running::Running;
use super::server::{Rows, Server};
use super::{PASSWORD, PASSWORD_VARIABLE, janitor, wait};

/// The clock of MySQL's leases, in milliseconds.
const SERVER_NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000";

/// A store of a test's own, and a directory beside it for the test's files.
#[derive(Debug)]
pub(crate) struct Place<'server> {
    files: TempDir,
    store: Store<'server>,
}

#[derive(Debug)]
enum Store<'server> {
    Embedded(PathBuf),
    Server(Database<'server>),
}

/// A row of the table of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) owner: String,
    pub(crate) token: u64,
    pub(crate) expire_at: i64,
    pub(crate) renewals: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) kind: String,
    pub(crate) pid: u32,
    pub(crate) note: String,
}

impl Place<'static> {
    /// Returns an embedded store, in a file that does not exist yet.
    #[track_caller]
    pub(crate) fn embedded() -> Self {
        let files = janitor::directory();
        let store = Store::Embedded(files.path().join("locks.db"));
        Self { files, store }
    }

    /// Returns a database on the server that all tests share.
    #[track_caller]
    pub(crate) fn mariadb() -> Self {
        Place::on(Server::shared())
    }
}

impl<'server> Place<'server> {
    /// Returns a database on this server.
    #[track_caller]
    pub(crate) fn on(server: &'server Server) -> Self {
        Self {
            files: janitor::directory(),
            store: Store::Server(Database::new(server)),
        }
    }

    /// Returns the database of a place on a server.
    #[track_caller]
    pub(crate) fn database(&self) -> &Database<'server> {
        match &self.store {
            Store::Server(database) => database,
            Store::Embedded(_) => panic!("the embedded store has no server"),
        }
    }

    /// Returns dblock as somebody calls it who has configured this place by
    /// the environment.
    pub(crate) fn dblock(&self) -> Dblock {
        self.configure(Dblock::unconfigured())
    }

    /// Returns dblock with `run --key KEY`; options and `--` follow.
    pub(crate) fn run(&self, key: &str) -> Dblock {
        self.dblock().args(["run", "--key", key])
    }

    /// Returns a shell script that may call `dblock`.
    pub(crate) fn shell(&self, script: &str) -> Dblock {
        self.configure(Dblock::shell(script))
    }

    fn configure(&self, dblock: Dblock) -> Dblock {
        let dblock = dblock.env("DBLOCK_URL", self.url());
        match self.store {
            Store::Embedded(_) => dblock,
            Store::Server(_) => dblock.env(PASSWORD_VARIABLE, PASSWORD),
        }
    }

    /// Returns the URL, without the password.
    pub(crate) fn url(&self) -> String {
        match &self.store {
            Store::Embedded(path) => format!("sqlite:{}", path.display()),
            Store::Server(database) => database.url(),
        }
    }

    /// Returns the path of a file of the test's, which does not exist yet.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Returns a new gate that keeps a job running until the test opens it.
    pub(crate) fn gate(&self) -> Gate {
        let number = GATES.fetch_add(1, Ordering::Relaxed);
        let path = self.file(&format!("gate-{number}"));
        Gate { path }
    }

    /// Carries out one statement that both stores understand.
    #[track_caller]
    pub(crate) fn query(&self, sql: &str) -> Rows {
        match &self.store {
            Store::Embedded(path) => {
                query_file(path, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
            }
            Store::Server(database) => database.query(sql),
        }
    }

    /// Returns the rows of a key, by slot.
    #[track_caller]
    pub(crate) fn rows(&self, key: &str) -> Vec<Row> {
        if let Store::Embedded(path) = &self.store
            && !path.exists()
        {
            return Vec::new();
        }
        let rows = self.query(&format!(
            "SELECT owner_id, token, expire_at, renewals, ttl_ms, kind, pid, note \
             FROM dblock_lock WHERE lock_key = '{key}' ORDER BY slot"
        ));
        rows.into_iter().map(Row::read).collect()
    }

    /// Returns the one row of a key.
    #[track_caller]
    pub(crate) fn row(&self, key: &str) -> Row {
        let mut rows = self.rows(key);
        assert_eq!(rows.len(), 1, "rows of {key:?}: {rows:?}");
        rows.remove(0)
    }

    /// Fails unless the key is free and has no row.
    #[track_caller]
    pub(crate) fn assert_free(&self, key: &str) {
        assert_eq!(self.rows(key), [], "rows of {key:?}");
    }

    /// Waits until the key's row has been renewed at least once more.
    #[track_caller]
    pub(crate) fn wait_for_renewal(&self, key: &str) -> Row {
        let before = self.row(key);
        wait::until("a renewal", || {
            let now = self.row(key);
            if now.renewals > before.renewals {
                Ok(now)
            } else {
                Err(format!("{now:?}"))
            }
        })
    }

    /// Returns the milliseconds that the key's row has left by the store's own
    /// clock; negative if the lease has expired.
    #[track_caller]
    pub(crate) fn left_ms(&self, key: &str) -> i64 {
        match &self.store {
            Store::Embedded(_) => self.row(key).expire_at - boot_time_ms(),
            Store::Server(database) => {
                let rows = database.query(&format!(
                    "SELECT expire_at - ({SERVER_NOW}) FROM dblock_lock WHERE lock_key = '{key}'"
                ));
                rows[0][0].parse().expect("a number")
            }
        }
    }

    /// Waits until a dblock that was just started has reached this store.
    #[track_caller]
    pub(crate) fn wait_until_reached_by(&self, running: &Running) {
        wait::until("dblock to reach its store", || {
            let reached = match &self.store {
                Store::Embedded(path) => running.descriptors().contains(path),
                Store::Server(database) => is_connected(running, database.server().port()),
            };
            if reached {
                Ok(())
            } else {
                Err(running.facts())
            }
        });
    }

    /// Gives the key to another owner, as if the lease had expired and the
    /// next one had taken it, and returns that row.
    #[track_caller]
    pub(crate) fn steal(&self, key: &str) -> Row {
        let before = self.row(key);
        self.query(&format!(
            "UPDATE dblock_lock SET owner_id = '{THIEF}', token = token + 1, host = 'thief-host', \
             expire_at = expire_at + 600000, ttl_ms = 900000, kind = 'acquire' \
             WHERE lock_key = '{key}'"
        ));
        let after = self.row(key);
        assert_eq!(
            (after.owner.as_str(), after.token),
            (THIEF, before.token + 1)
        );
        after
    }

    /// Deletes the key's row.
    #[track_caller]
    pub(crate) fn delete(&self, key: &str) {
        self.query(&format!("DELETE FROM dblock_lock WHERE lock_key = '{key}'"));
    }
}

/// The owner to whom [`Place::steal`] gives a lock, on the host `thief-host`.
pub(crate) const THIEF: &str = "7ea5e000-0000-4000-8000-000000000001";

impl Row {
    #[track_caller]
    fn read(values: Vec<String>) -> Self {
        let number = |at: usize| values[at].parse().expect("a number that is not negative");
        Self {
            owner: values[0].clone(),
            token: number(1),
            expire_at: values[2].parse().expect("a number"),
            renewals: number(3),
            ttl_ms: number(4),
            kind: values[5].clone(),
            pid: u32::try_from(number(6)).expect("a pid"),
            note: values[7].clone(),
        }
    }
}

static GATES: AtomicU32 = AtomicU32::new(0);

/// Keeps jobs running until it is opened.
#[derive(Debug)]
pub(crate) struct Gate {
    path: PathBuf,
}

impl Gate {
    /// Returns the shell command that waits at the gate.
    pub(crate) fn wait(&self) -> String {
        format!(
            "until [ -e '{}' ]; do sleep 0.05; done",
            self.path.display()
        )
    }

    /// Lets everybody through.
    #[track_caller]
    pub(crate) fn open(&self) {
        fs::write(&self.path, "").expect("the gate can be opened");
    }
}

fn boot_time_ms() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("there is a boot-time clock");
    now.tv_sec() * 1000 + now.tv_nsec() / 1_000_000
}

/// Tells whether the process has an established connection to a port of the
/// loopback address; see proc_net_tcp in the kernel's documentation.
fn is_connected(running: &Running, port: u16) -> bool {
    let connections = fs::read_to_string("/proc/net/tcp").expect("the kernel shows connections");
    let remote = format!("0100007F:{port:04X}");
    let mut sockets = connections.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let established = fields.get(2) == Some(&remote.as_str()) && fields.get(3) == Some(&"01");
        established.then(|| PathBuf::from(format!("socket:[{}]", fields[9])))
    });
    let own = running.descriptors();
    sockets.any(|socket| own.contains(&socket))
}

fn query_file(path: &Path, sql: &str) -> rusqlite::Result<Rows> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(wait::LIMIT)?;
    let answer = connection.prepare(sql).and_then(|mut statement| {
        let columns = statement.column_count();
        statement
            .query_map([], |row| {
                (0..columns).map(|at| row.get_ref(at).map(show)).collect()
            })?
            .collect()
    });
    match answer {
        // Somebody is about to make the tables.
        Err(rusqlite::Error::SqliteFailure(error, Some(text)))
            if error.code == ErrorCode::Unknown && text.starts_with("no such table") =>
        {
            Ok(Vec::new())
        }
        answer => answer,
    }
}

fn show(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
    }
}
