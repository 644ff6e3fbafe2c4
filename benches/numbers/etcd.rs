//! A throwaway etcd on the loopback address, gone with this process.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::server::free_port;
use crate::support::{janitor, wait};

/// Starts the server, waits until standard input ends, and cleans up.
const SERVE: &str = r#"
data=$1 client=$2 peer=$3
etcd --data-dir "$data/etcd" --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
    --initial-cluster "default=$peer" </dev/null >/dev/null 2>&1 &
server=$!
read -r end
kill -KILL "$server"
wait "$server"
rm -rf "$data"
"#;

/// A running etcd.
pub(crate) struct Etcd {
    address: String,
    shell: Child,
}

impl Etcd {
    /// Starts a server if it is installed.
    pub(crate) fn start() -> Result<Self, String> {
        for program in ["etcd", "etcdctl"] {
            if !is_installed(program) {
                return Err(format!("{program} is not installed"));
            }
        }
        let [client, peer] = [(); 2].map(|()| format!("http://127.0.0.1:{}", free_port()));
        let data = janitor::directory().keep();
        let path = data.to_str().expect("the path is UTF-8");
        let shell = janitor::start(SERVE, &[path, &client, &peer]);
        let etcd = Self {
            address: client,
            shell,
        };
        wait::until("etcd to start", || {
            let healthy = etcd
                .client(&["endpoint", "health"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            match healthy {
                Ok(status) if status.success() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        Ok(etcd)
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.address])
            .args(arguments);
        command
    }

    /// Returns the command that runs a job under a lock.
    pub(crate) fn lock(&self, key: &str, job: &str) -> Command {
        self.client(&["lock", key, job])
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().ok();
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|place| Path::new(&place).join(program).is_file())
}
