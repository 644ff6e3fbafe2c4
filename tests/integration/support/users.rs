//! Calls as somebody else: an ordinary user, and programs that become root.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::geteuid;

use super::dblock::Dblock;
use super::place::Place;

static USERS: AtomicU32 = AtomicU32::new(0);

/// Says that a test proves nothing here. This is not kept back by the test
/// harness as the output of a test is.
pub(crate) fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").ok();
}

/// Returns the beginning of a call by an ordinary user, whose processes are
/// its own alone; the words of the command follow.
///
/// The user may read and write files like root, so that it finds the program
/// and the store wherever they are, but nothing else. Fails unless the tests
/// run as root.
pub(crate) fn as_a_user(place: &Place<'_>) -> Result<Dblock, String> {
    if !geteuid().is_root() {
        return Err("only root can be somebody else".to_owned());
    }
    // Numbers that are given to nobody, different in two runs at a time.
    let number = std::process::id() % 1000 * 10 + USERS.fetch_add(1, Ordering::Relaxed) % 10;
    let user = (45_000 + number).to_string();
    let call = place.shell("exec \"$@\"");
    Ok(call
        .args(["sh", "setpriv", "--reuid", &user, "--regid", &user])
        .args(["--clear-groups", "--inh-caps", "-all,+dac_override"])
        .args(["--ambient-caps", "-all,+dac_override"]))
}

/// Returns a copy of a program that runs as root, whoever starts it.
pub(crate) fn set_user_id_root(place: &Place<'_>, program: &str) -> Result<PathBuf, String> {
    if !geteuid().is_root() {
        return Err("only root can make a program that runs as root".to_owned());
    }
    let copy = place.file("runs-as-root");
    fs::copy(program, &copy).map_err(|error| format!("{program}: {error}"))?;
    let mode = fs::Permissions::from_mode(0o4755);
    fs::set_permissions(&copy, mode).map_err(|error| error.to_string())?;
    Ok(copy)
}
