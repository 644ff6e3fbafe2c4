//! A fresh database on a server, for one test.

use std::sync::atomic::{AtomicU32, Ordering};

use mysql::Conn;

use super::dblock::Dblock;
use super::server::{Rows, Server, query_on};
use super::{PASSWORD, PASSWORD_VARIABLE};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The columns of the table of locks.
const COLUMNS: [&str; 19] = [
    "lock_key",
    "slot",
    "owner_id",
    "token",
    "expire_at",
    "acquired_at",
    "renewals",
    "ttl_ms",
    "slots",
    "kind",
    "host",
    "pid",
    "user_name",
    "command",
    "note",
    "state",
    "delay_ms",
    "keep_until",
    "done_until",
];

/// A database with the tables, and a user with a password and the least
/// rights. Both are dropped at the end.
#[derive(Debug)]
pub(crate) struct Database<'server> {
    server: &'server Server,
    name: String,
    user: String,
}

impl<'server> Database<'server> {
    /// Creates a database, and the tables in it the way an administrator does.
    #[track_caller]
    pub(crate) fn new(server: &'server Server) -> Self {
        let database = Self::without_tables(server);
        database.init();
        database
    }

    /// Creates a database that nobody has prepared.
    #[track_caller]
    pub(crate) fn without_tables(server: &'server Server) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self::named(server, format!("locks_{number}"), format!("user_{number}"))
    }

    /// Creates a database with the same name, user and tables on another
    /// server, as on another host of the same cluster. It has no rows.
    #[track_caller]
    pub(crate) fn twin<'other>(&self, server: &'other Server) -> Database<'other> {
        let twin = Database::named(server, self.name.clone(), self.user.clone());
        twin.init();
        twin
    }

    /// Copies the rows of the table of locks to a twin, as replication does.
    #[track_caller]
    pub(crate) fn replicate(&self, twin: &Database<'_>) {
        let values = COLUMNS.map(|column| format!("QUOTE({column})")).join(", ");
        let rows = self.query(&format!("SELECT {values} FROM dblock_lock"));
        for row in rows {
            twin.query(&format!(
                "REPLACE INTO dblock_lock ({}) VALUES ({})",
                COLUMNS.join(", "),
                row.join(", ")
            ));
        }
    }

    #[track_caller]
    fn named(server: &'server Server, name: String, user: String) -> Self {
        server.execute(&format!("CREATE DATABASE {name}"));
        server.execute(&format!(
            "CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}'"
        ));
        server.execute(&format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {user}@'%'"
        ));
        Self { server, name, user }
    }

    /// Creates the tables by `dblock init`, with an administrator's rights.
    #[track_caller]
    pub(crate) fn init(&self) {
        let (address, port) = (self.server.address(), self.server.port());
        let url = format!("mysql://admin@{address}:{port}/{}", self.name);
        Dblock::unconfigured()
            .env("DBLOCK_URL", url)
            .env(PASSWORD_VARIABLE, PASSWORD)
            .arg("init")
            .run()
            .code(0);
    }

    /// Returns the server.
    pub(crate) fn server(&self) -> &'server Server {
        self.server
    }

    /// Returns the database's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the user with the least rights.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Returns the URL for the user with the least rights.
    pub(crate) fn url(&self) -> String {
        let (address, port) = (self.server.address(), self.server.port());
        self.url_of(&format!("{address}:{port}"))
    }

    /// Returns the URL with another port, that of a proxy.
    pub(crate) fn url_at(&self, port: u16) -> String {
        self.url_of(&format!("127.0.0.1:{port}"))
    }

    /// Returns the URL with other hosts, as they stand in it.
    pub(crate) fn url_of(&self, hosts: &str) -> String {
        format!("mysql://{}@{hosts}/{}", self.user, self.name)
    }

    /// Returns the URL with several ports, in this order.
    pub(crate) fn url_over(&self, ports: &[u16]) -> String {
        let hosts: Vec<_> = ports.iter().map(|p| format!("127.0.0.1:{p}")).collect();
        self.url_of(&hosts.join(","))
    }

    /// Connects to this database as the administrator.
    #[track_caller]
    pub(crate) fn connect(&self) -> Conn {
        let mut connection = self
            .server
            .connect()
            .expect("the administrator can connect");
        connection
            .select_db(&self.name)
            .expect("the database is there");
        connection
    }

    /// Carries out one statement in this database as the administrator.
    #[track_caller]
    pub(crate) fn query(&self, sql: &str) -> Rows {
        query_on(&mut self.connect(), sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // The server may be dead, when its test has failed.
        self.server
            .try_query(&format!("DROP DATABASE {}", self.name))
            .ok();
        self.server
            .try_query(&format!("DROP USER {}", self.user))
            .ok();
    }
}
