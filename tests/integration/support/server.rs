//! A throwaway MariaDB: its own data directory, socket and port, gone with
//! the test process.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout};
use std::sync::{LazyLock, Mutex, PoisonError};

use mysql::prelude::Queryable as _;
use mysql::{Conn, OptsBuilder, Value};

use super::{PASSWORD, janitor, wait};

/// Makes the data directory, starts the server, then obeys `start` and `kill`.
/// The arguments behind the fifth are flags of the server's; of two that
/// contradict each other it obeys the last.
///
/// The server keeps every promise that dblock relies on (a commit is on the
/// disk), and is otherwise as small as it can be.
const SERVE: &str = r#"
temp=$1 port=$2 install=$3 mariadbd=$4 user=$5
shift 5
data=$(mktemp -d "$temp/dblock-server-XXXXXX") || exit 1
echo "$data"
run() {
    "$mariadbd" --no-defaults $user --datadir="$data/data" --tmpdir="$data" \
        --socket="$data/socket" --pid-file="$data/pid" --port="$port" \
        --bind-address=127.0.0.1 --skip-name-resolve --skip-log-bin --max-connections=500 \
        --innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size=16M \
        --innodb-log-file-size=8M --performance-schema=OFF --key-buffer-size=1M \
        --aria-pagecache-buffer-size=1M "$@" </dev/null >>"$data/log" 2>&1 &
    server=$!
    echo "$server"
}
stop() {
    kill -KILL "$server"
    wait "$server"
}
if "$install" --no-defaults $user --datadir="$data/data" --tmpdir="$data" \
    --auth-root-authentication-method=normal --skip-test-db \
    --innodb-log-file-size=8M </dev/null >>"$data/log" 2>&1
then
    run "$@"
else
    echo failed
fi
while read -r order; do
    case $order in
        kill) stop; echo killed ;;
        start) run "$@" ;;
    esac
done
stop
rm -rf "$data"
"#;

/// The rows of an answer, each value as text.
pub(crate) type Rows = Vec<Vec<String>>;

/// A running MariaDB.
#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
    place: PathBuf,
    janitor: Mutex<Janitor>,
}

#[derive(Debug)]
struct Janitor {
    shell: Child,
    answers: BufReader<ChildStdout>,
}

impl Janitor {
    fn order(&mut self, order: &str) -> String {
        let orders = self.shell.stdin.as_mut().expect("stdin is a pipe");
        writeln!(orders, "{order}").expect("the janitor lives as long as the tests");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .expect("the janitor answers");
        line.trim().to_owned()
    }
}

static SHARED: LazyLock<Result<Server, String>> = LazyLock::new(|| Server::try_start(&[]));

impl Server {
    /// Returns the server that all tests share, and starts it for the first.
    #[track_caller]
    pub(crate) fn shared() -> &'static Self {
        SHARED
            .as_ref()
            .unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Starts a server of the test's own, for a test that kills it.
    #[track_caller]
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server of the test's own with flags, such as `--read-only`,
    /// which it also has when it is started again.
    #[track_caller]
    pub(crate) fn start_with(flags: &[&str]) -> Self {
        Self::try_start(flags).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn try_start(flags: &[&str]) -> Result<Self, String> {
        let mut problem = String::new();
        // The free port may be taken by another program before the server
        // gets to it.
        for _ in 0..3 {
            match Self::try_start_once(flags) {
                Ok(server) => return Ok(server),
                Err(text) => problem = text,
            }
        }
        Err(problem)
    }

    fn try_start_once(flags: &[&str]) -> Result<Self, String> {
        let mariadbd = program(&["mariadbd", "mysqld"])?;
        let install = program(&["mariadb-install-db", "mysql_install_db"])?;
        let port = free_port();
        let user = if nix::unistd::geteuid().is_root() {
            "--user=root"
        } else {
            ""
        };
        let (temp, number) = (env::temp_dir(), port.to_string());
        let own = [text(&temp), &number, text(&install), text(&mariadbd), user];
        let mut shell = janitor::start(SERVE, &[&own, flags].concat());
        let stdout = shell.stdout.take().expect("stdout is a pipe");
        let mut janitor = Janitor {
            shell,
            answers: BufReader::new(stdout),
        };
        let place = PathBuf::from(janitor.answer());
        let pid = janitor.answer();
        let server = Self {
            port,
            place,
            janitor: Mutex::new(janitor),
        };
        server.wait_until_ready(&pid)?;
        server.execute(&format!("CREATE USER admin@'%' IDENTIFIED BY '{PASSWORD}'"));
        server.execute("GRANT ALL ON *.* TO admin@'%'");
        Ok(server)
    }

    fn wait_until_ready(&self, pid: &str) -> Result<(), String> {
        wait::until("MariaDB to start", || match self.connect() {
            Ok(_) => Ok(Ok(())),
            Err(error) if Path::new("/proc").join(pid).exists() => Err(error.to_string()),
            Err(_) => {
                let log = fs::read_to_string(self.place.join("log"));
                Ok(Err(format!("MariaDB does not start: {log:?}")))
            }
        })
    }

    /// Returns the TCP port on the loopback address.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server as a power failure would.
    pub(crate) fn kill(&self) {
        let answer = self.janitor().order("kill");
        assert_eq!(answer, "killed");
    }

    /// Starts the killed server again, on the same data and the same port.
    #[track_caller]
    pub(crate) fn start_again(&self) {
        let pid = self.janitor().order("start");
        self.wait_until_ready(&pid)
            .unwrap_or_else(|problem| panic!("{problem}"));
    }

    fn janitor(&self) -> std::sync::MutexGuard<'_, Janitor> {
        self.janitor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects as the administrator, through the socket, so that no proxy and
    /// no limit of a test stands in between.
    pub(crate) fn connect(&self) -> mysql::Result<Conn> {
        Conn::new(
            OptsBuilder::new()
                .socket(self.place.join("socket").to_str())
                .user(Some("root"))
                .prefer_socket(false),
        )
    }

    /// Carries out one statement as the administrator.
    #[track_caller]
    pub(crate) fn execute(&self, sql: &str) {
        self.try_query(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Carries out one statement on a server that may be dead.
    pub(crate) fn try_query(&self, sql: &str) -> mysql::Result<Rows> {
        query_on(&mut self.connect()?, sql)
    }
}

/// Carries out one statement and returns the rows as text, `NULL` for null.
pub(crate) fn query_on(connection: &mut Conn, sql: &str) -> mysql::Result<Rows> {
    let rows: Vec<mysql::Row> = connection.query(sql)?;
    let texts = |row: mysql::Row| row.unwrap().into_iter().map(show).collect();
    Ok(rows.into_iter().map(texts).collect())
}

impl Drop for Server {
    fn drop(&mut self) {
        let janitor = self
            .janitor
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        drop(janitor.shell.stdin.take());
        janitor.shell.wait().ok();
    }
}

fn show(value: Value) -> String {
    match value {
        Value::NULL => "NULL".to_owned(),
        Value::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => other.as_sql(true),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

/// Returns a port that nothing listens on.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.local_addr().expect("it has an address").port()
}

/// Finds the first of the programs that is installed, also where only root
/// has a look.
fn program(names: &[&str]) -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    places
        .flat_map(|place| names.iter().map(move |name| place.join(name)))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            format!(
                "{} is not installed; tests/run installs what the tests need",
                names[0]
            )
        })
}
