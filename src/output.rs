//! What people and scripts read: the only writer to standard output and
//! standard error.
//!
//! Standard output carries what was asked for and nothing else; everything
//! that is told goes to standard error, one line a thing, each written at
//! once so that lines of several processes do not mix. This module must not
//! know SQL or decide anything.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use comfy_table::{Table, TableStyle};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::lock::{Holder, Key, Kind, Owner, State, Token, Waiter, serialize_millis, to_millis};
use crate::origin;
use crate::signals;
use crate::store::Place;
use crate::supervise::{Ended, Loss, Naming, Note};

/// How much is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Console {
    /// Say nothing about a busy key.
    pub quiet: bool,
    /// Tell what happens.
    pub verbose: bool,
}

impl Console {
    /// Tells what matters: an error, a warning, an end.
    pub fn say(self, line: &dyn Display) {
        let mut text = plain(&format!("dblock: {line}"));
        let mut end = text.len().min(LINE_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('\n');
        // A closed or broken stderr changes nothing about what is done.
        if takes_a_line() {
            io::stderr().write_all(text.as_bytes()).ok();
        }
    }

    /// Tells lines that are whole already, if there are any.
    pub fn warn(self, lines: &str) {
        for line in lines.lines() {
            self.say(&line);
        }
    }

    /// Tells that a key is busy, unless that is not wanted.
    pub fn busy(self, line: &dyn Display) {
        if !self.quiet {
            self.say(line);
        }
    }

    /// Tells what only those want to know who asked for it.
    pub fn tell(self, line: &dyn Display) {
        if self.verbose {
            self.say(line);
        }
    }

    /// Names the processes that are left of a job.
    pub fn survivors(self, key: &Key, why: Naming, pids: &[i32]) {
        if pids.is_empty() {
            return;
        }
        let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
        let pids = pids.join(", ");
        match why {
            Naming::Leftovers => self.say(&format_args!(
                "the job has ended, but processes of it are left and keep \"{key}\": pid {pids}"
            )),
            Naming::Unkillable => self.say(&format_args!(
                "warning: processes of the job under \"{key}\" cannot be killed: pid {pids}"
            )),
        }
    }

    /// Tells what the supervisor noted.
    pub fn note(self, key: &Key, note: &Note) {
        match note {
            Note::Renewed(took) => self.tell(&format_args!(
                "\"{key}\" renewed in {}",
                humantime::format_duration(Duration::from_micros(
                    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
                ))
            )),
            Note::RenewalFailed(why) => {
                self.tell(&format_args!("renewing \"{key}\" failed: {why}"));
            }
            Note::RenewalsFailing(why, left) => self.say(&format_args!(
                "renewing \"{key}\" fails, still trying; the job will be stopped in {}: {why}",
                rough(*left)
            )),
            Note::Recovered => self.say(&format_args!("renewing \"{key}\" works again")),
            Note::Stopping(loss) => {
                self.tell(&format_args!(
                    "\"{key}\" is lost ({loss}), stopping the job"
                ));
            }
            Note::Killing => self.say(&format_args!(
                "the job under \"{key}\" did not end in time after it was asked to, killing it"
            )),
            Note::LostBefore(_) => self.say(&format_args!(
                "warning: \"{key}\" was not held any more when the job had ended; \
                 somebody else may have run at the same time"
            )),
            Note::NotReleased(why, left) => self.say(&format_args!(
                "warning: \"{key}\" could not be released and expires in {}: {why}",
                rough(*left)
            )),
        }
    }
}

/// Longest line, in bytes with its end. A pipe that poll(2) calls writable
/// takes so many at once (pipe(7), PIPE_BUF), whole and without blocking.
const LINE_MAX: usize = 4000;
/// How long a line may wait for a reader that is slow. A reader that is gone
/// for longer misses it: nobody's log may hold up a renewal.
const SLOW_READER: u8 = 50;

fn takes_a_line() -> bool {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    // What poll(2) cannot tell of, such as a closed descriptor, does not block.
    !matches!(poll(&mut fds, PollTimeout::from(SLOW_READER)), Ok(0))
}

/// Writes to standard output what was asked for. A reader that has gone away,
/// as in `| head`, has read what it wanted.
///
/// # Errors
///
/// Returns what write(2) says, but for a pipe that nobody reads.
pub fn print(text: &str) -> io::Result<()> {
    match deliver(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Writes to standard output what somebody must have read.
///
/// # Errors
///
/// Returns an error also if standard output was closed at the start.
pub fn deliver(text: &str) -> io::Result<()> {
    if origin::was_closed(1) {
        return Err(io::Error::other("standard output is closed"));
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Returns `value` as one JSON text with a line end.
///
/// # Errors
///
/// Returns an error if the value has no JSON form.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(|text| text + "\n")
}

impl Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "it exited with {status}"),
            Self::Signaled(number) => write!(f, "it died of {}", signals::name(*number)),
        }
    }
}

impl Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(rows) => match rows.iter().find(|row| row.state == State::Held) {
                Some(row) => write!(f, "it is held by {} now", Who(row)),
                None => f.write_str("its row was removed"),
            },
            Self::Late(Some(why)) => write!(f, "it could not be renewed in time: {why}"),
            Self::Late(None) => f.write_str("it was not renewed in time"),
            Self::KeeperDied => f.write_str("the renewing thread died"),
            Self::GuardDied => f.write_str("the guard process died"),
        }
    }
}

/// Shows a holder as `web-3 (pid 4242, deploy)`, or `web-3 (by hand, deploy)`.
pub struct Who<'a>(pub &'a Holder);

impl Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = &self.0.claimant;
        match self.0.kind {
            Kind::Run => write!(f, "{} (pid {}, {})", who.host, who.pid, who.user),
            // The process that took it has ended long ago.
            Kind::Acquire => write!(f, "{} (by hand, {})", who.host, who.user),
            Kind::Block => write!(f, "{} on {}", who.user, who.host),
        }
    }
}

/// Shows why a key cannot be had: who holds it, since when, and for how long,
/// or what keeps it shut.
pub struct HeldBy<'a> {
    /// The key.
    pub key: &'a Key,
    /// The rows that stand in the way.
    pub holders: &'a [Holder],
}

impl Display for HeldBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key;
        // What concerns the whole key says more than who has a slot of it.
        let shut = |row: &&Holder| matches!(row.state, State::Blocked | State::Done);
        let Some(row) = self
            .holders
            .iter()
            .find(shut)
            .or_else(|| self.holders.iter().min_by_key(|row| row.remaining))
        else {
            return write!(f, "\"{key}\" is held by somebody who has just gone");
        };
        let who = Who(row);
        let left = rough(row.remaining);
        match row.state {
            State::Held | State::Expired if self.holders.len() > 1 => write!(
                f,
                "all {} slots of \"{key}\" are held, one by {who}{}, {left} left",
                row.slots,
                At(" since ", row)
            )?,
            State::Held | State::Expired => write!(
                f,
                "\"{key}\" is held by {who}{}, {left} left",
                At(" since ", row)
            )?,
            State::Closing => write!(
                f,
                "\"{key}\" is kept closed for another {left} after {who}{}",
                At(", granted at ", row)
            )?,
            State::Done => write!(
                f,
                "\"{key}\" has been done by {who}{}, and not again for {left}",
                At(", granted at ", row)
            )?,
            State::Blocked if has_no_end(row) => {
                write!(f, "\"{key}\" is blocked by {who}{}", At(" since ", row))?;
            }
            State::Blocked => write!(
                f,
                "\"{key}\" is blocked by {who}{} for another {left}",
                At(" since ", row)
            )?,
        }
        if let Some(note) = &row.claimant.note {
            write!(f, " ({note})")?;
        }
        Ok(())
    }
}

/// Shows the time of a row's grant after a word, or nothing if it is unknown.
struct At<'a>(&'a str, &'a Holder);

impl Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(word, row) = self;
        let at = row.acquired_at;
        let Some(at) = at.and_then(|at| Timestamp::from_millisecond(at).ok()) else {
            return Ok(());
        };
        let format = if row.held < Duration::from_secs(20 * 3600) {
            "%H:%M:%S"
        } else {
            "%Y-%m-%d %H:%M:%S"
        };
        write!(f, "{word}{} UTC", at.strftime(format))
    }
}

/// Tells whether a block lasts until it is taken away.
fn has_no_end(row: &Holder) -> bool {
    row.state == State::Blocked && row.remaining > Duration::from_secs(100 * 366 * 86_400)
}

/// Shows what a waiter waits for.
pub struct Waiting<'a> {
    /// The key.
    pub key: &'a Key,
    /// The rows that stand in the way.
    pub holders: &'a [Holder],
    /// Where the waiter stands.
    pub place: Option<Place>,
}

impl Display for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            holders,
            place,
        } = *self;
        write!(f, "{}; waiting", HeldBy { key, holders })?;
        match place {
            Some(place) if place.waiting > 1 => {
                write!(f, " at place {} of {}", place.ahead + 1, place.waiting)
            }
            _ => Ok(()),
        }
    }
}

/// Returns a duration as people say it: its two largest units, whole seconds.
#[must_use]
pub fn rough(length: Duration) -> String {
    let seconds = length.as_secs();
    let units = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = units.iter().position(|(n, _)| *n > 0).unwrap_or(3);
    let shown: Vec<String> = units[first..]
        .iter()
        .take(2)
        .enumerate()
        .filter(|(place, (n, _))| *place == 0 || *n > 0)
        .map(|(_, (n, unit))| format!("{n}{unit}"))
        .collect();
    shown.join(" ")
}

/// Longest key, command and note in a table on a terminal, in characters.
const CELL_MAX: (usize, usize, usize) = (40, 30, 30);

/// Cuts a text for a terminal, where a long one would break every line.
fn cut(text: &str, longest: usize) -> String {
    let text = plain(text);
    if !io::stdout().is_terminal() || text.chars().count() <= longest {
        return text;
    }
    text.chars().take(longest - 1).chain(['…']).collect()
}

/// Returns a text without control characters: another program may have
/// written into the table what would paint over somebody's terminal.
fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Returns the table of `status`. `free` are keys that were asked for and have
/// no row.
#[must_use]
pub fn status_table(rows: &[Holder], free: &[Key], waiters: &[Waiter]) -> String {
    if rows.is_empty() && free.is_empty() {
        return "no locks are held\n".to_owned();
    }
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    let mut header = vec![
        "STATE", "KEY", "HOLDER", "SINCE", "LEFT", "RENEWALS", "COMMAND",
    ];
    let slots = rows.iter().any(|row| row.slots > 1);
    if slots {
        header.insert(2, "SLOT");
    }
    if !waiters.is_empty() {
        header.push("WAITING");
    }
    let notes = rows.iter().any(|row| row.claimant.note.is_some());
    if notes {
        header.push("NOTE");
    }
    let columns = header.len();
    table.set_header(header);
    for row in rows {
        let who = &row.claimant;
        let mut cells = vec![
            state(row.state).to_owned(),
            cut(row.grant.key.as_str(), CELL_MAX.0),
            plain(&match row.kind {
                Kind::Run => format!("{}@{}:{}", who.user, who.host, who.pid),
                // The process that did it has ended long ago.
                Kind::Acquire | Kind::Block => format!("{}@{}", who.user, who.host),
            }),
            since(row),
            if has_no_end(row) {
                "no end".to_owned()
            } else {
                rough(row.remaining)
            },
            row.renewals.to_string(),
            match row.kind {
                Kind::Run => cut(&who.command, CELL_MAX.1),
                Kind::Acquire => "(held by hand)".to_owned(),
                Kind::Block => String::new(),
            },
        ];
        if slots {
            cells.insert(
                2,
                match row.kind {
                    Kind::Block => "all".to_owned(),
                    _ => format!("{} of {}", row.grant.slot, row.slots),
                },
            );
        }
        if !waiters.is_empty() {
            let waiting = waiters.iter().filter(|waiter| waiter.key == row.grant.key);
            cells.push(waiting.count().to_string());
        }
        if notes {
            cells.push(cut(who.note.as_deref().unwrap_or_default(), CELL_MAX.2));
        }
        table.add_row(cells);
    }
    for key in free {
        let mut cells = vec![String::new(); columns];
        cells[0] = "free".to_owned();
        cells[1] = cut(key.as_str(), CELL_MAX.0);
        table.add_row(cells);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n") + "\n"
}

fn state(state: State) -> &'static str {
    match state {
        State::Held => "held",
        State::Expired => "expired",
        State::Closing | State::Done => "closing",
        State::Blocked => "blocked",
    }
}

/// Returns the time of a grant in the reader's zone, and how long ago it was.
fn since(row: &Holder) -> String {
    let Some(at) = row
        .acquired_at
        .and_then(|at| Timestamp::from_millisecond(at).ok())
    else {
        return "unknown".to_owned();
    };
    let local = at.to_zoned_datetime(TimeZone::system());
    let format = if row.held < Duration::from_secs(20 * 3600) {
        "%H:%M:%S"
    } else {
        "%Y-%m-%d %H:%M"
    };
    format!("{} ({} ago)", local.strftime(format), rough(row.held))
}

/// A row of `status --json`, and the holder in `--report`.
#[derive(Debug, Serialize)]
pub struct StatusRow<'a> {
    key: &'a Key,
    slot: Option<u16>,
    slots: Option<u16>,
    state: State,
    kind: Kind,
    owner: &'a Owner,
    token: Token,
    host: &'a str,
    pid: u32,
    user: &'a str,
    command: Option<&'a str>,
    note: Option<&'a str>,
    acquired_at: Option<String>,
    #[serde(serialize_with = "serialize_millis")]
    held_ms: Duration,
    remaining_ms: Option<u64>,
    #[serde(serialize_with = "serialize_millis")]
    ttl_ms: Duration,
    renewals: u64,
    waiters: Vec<WaiterRow<'a>>,
}

/// A waiter in [`StatusRow`].
#[derive(Debug, Serialize)]
struct WaiterRow<'a> {
    host: &'a str,
    pid: u32,
    user: &'a str,
    #[serde(serialize_with = "serialize_millis")]
    waiting_ms: Duration,
}

impl<'a> StatusRow<'a> {
    /// Returns the JSON form of a row, with those of the waiters who wait for
    /// its key. A block has no slot.
    #[must_use]
    pub fn new(row: &'a Holder, waiters: &'a [Waiter]) -> Self {
        let who = &row.claimant;
        let has_slot = row.kind != Kind::Block;
        Self {
            key: &row.grant.key,
            slot: has_slot.then_some(row.grant.slot),
            slots: has_slot.then_some(row.slots),
            state: row.state,
            kind: row.kind,
            owner: &row.grant.owner,
            token: row.grant.token,
            host: &who.host,
            pid: who.pid,
            user: &who.user,
            command: Some(who.command.as_str()).filter(|command| !command.is_empty()),
            note: who.note.as_deref(),
            acquired_at: row.acquired_at.and_then(rfc3339),
            held_ms: row.held,
            remaining_ms: (!has_no_end(row)).then(|| to_millis(row.remaining)),
            ttl_ms: row.ttl,
            renewals: row.renewals,
            waiters: waiters
                .iter()
                .filter(|waiter| waiter.key == row.grant.key)
                .map(|waiter| WaiterRow {
                    host: &waiter.host,
                    pid: waiter.pid,
                    user: &waiter.user,
                    waiting_ms: waiter.waiting,
                })
                .collect(),
        }
    }
}

/// The object that `acquire --json` prints.
#[derive(Debug, Serialize)]
pub struct AcquiredReport<'a> {
    /// The key.
    pub key: &'a Key,
    /// The slot.
    pub slot: u16,
    /// The owner id.
    pub owner: &'a Owner,
    /// The fencing token.
    pub token: Token,
    /// Length of the lease.
    pub ttl_ms: u64,
    /// What is left of it, counted from the moment when it was asked for.
    pub remaining_ms: u64,
}

/// The object that `run --report` writes.
#[derive(Debug, Serialize)]
pub struct RunReport<'a> {
    /// How it ended, in a word.
    pub outcome: &'static str,
    /// dblock's exit status; `None` if it died of a signal.
    pub status: Option<u8>,
    /// The signal that dblock died of.
    pub signal: Option<i32>,
    /// The key.
    pub key: &'a Key,
    /// The slot, if it was granted.
    pub slot: Option<u16>,
    /// The owner id, if it was granted.
    pub owner: Option<&'a Owner>,
    /// The fencing token, if it was granted.
    pub token: Option<Token>,
    /// Time of the grant by this host's clock, RFC 3339 in UTC.
    pub acquired_at: Option<String>,
    /// Time from the start to the grant, or to the end without one.
    pub waited_ms: u64,
    /// Time from the grant to the end.
    pub held_ms: Option<u64>,
    /// Number of renewals.
    pub renewals: u64,
    /// Why it ended so, in words.
    pub reason: Option<String>,
    /// The first holder, if the key was busy.
    pub holder: Option<StatusRow<'a>>,
}

/// Returns the present time of day, for people alone.
#[must_use]
pub fn time_of_day() -> String {
    Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
        .to_string()
}

fn rfc3339(millis: i64) -> Option<String> {
    let at = Timestamp::from_millisecond(millis).ok()?;
    Some(at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string())
}

/// Tells whether there is a terminal to ask on.
#[must_use]
pub fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Asks a question on the terminal and returns the answer.
///
/// # Errors
///
/// Returns an error if the terminal is gone.
pub fn ask(question: &str) -> io::Result<String> {
    for line in question.split_inclusive('\n') {
        let end = if line.ends_with('\n') { "\n" } else { "" };
        io::stderr().write_all((plain(line.trim_end_matches('\n')) + end).as_bytes())?;
    }
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_say_them() {
        let shown = |seconds| rough(Duration::from_secs(seconds));
        assert_eq!(shown(0), "0s");
        assert_eq!(shown(8), "8s");
        assert_eq!(shown(60), "1m");
        assert_eq!(shown(125), "2m 5s");
        assert_eq!(shown(3_600 + 5), "1h");
        assert_eq!(shown(3 * 86_400 + 4 * 3600 + 59), "3d 4h");
        assert_eq!(rough(Duration::from_millis(999)), "0s");
    }
}
