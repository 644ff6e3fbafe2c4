//! What dblock lets its job know of the lease: a small file in memory, which
//! the job reads through `/proc/PID/fd/N`.
//!
//! It is in no folder, so nothing can be left behind: it is gone with dblock,
//! however dblock ends, and no descriptor of it reaches the job. Each change is
//! a new, sealed file that takes the place of the one before at once (dup3(2)):
//! nobody ever reads half of a change, and nobody can write to it.
//!
//! The file says until when the lease is held, on the boot-time clock, and a
//! reader compares: if dblock is stopped or stuck, what it says runs out by
//! itself. So a reader may be told "no" too early, but never "yes" too late.
//!
//! This module must not know processes or stores.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::kill;
use nix::unistd::{Pid, dup3, getpid};

use crate::clock::{self, Tick};
use crate::lock::{Grant, Key, Owner, Token, to_millis};
use crate::supervise::Standing;
use crate::tree::Entry;

/// The file's name, which only shows in `/proc`.
const NAME: &str = "dblock-lease";
/// The first line: what the file is, and the version of its form.
const HEAD: &str = "dblock-lease 1";
/// More than any record has, in bytes.
const SIZE_MAX: u64 = 8 << 10;

/// What does not change about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The grant.
    pub grant: Grant,
    /// Number of equal slots under the key.
    pub slots: u16,
    /// The lease's length.
    pub ttl: Duration,
    /// The table of locks as the job's own SQL may call it, if there is one.
    pub table: Option<String>,
}

impl Record {
    /// Returns the file's text: a name and a value on each line. No key has a
    /// line end in it.
    fn text(&self, standing: Standing) -> String {
        let (state, expires) = match standing {
            Standing::Held(expires) => ("held", expires),
            Standing::Lost => ("lost", Tick::default()),
            Standing::Over => ("over", Tick::default()),
        };
        let grant = &self.grant;
        let mut text = format!(
            "{HEAD}\nkey {}\nslot {}\nslots {}\nowner {}\ntoken {}\nttl_ms {}\nstate {state}\n\
             expires_ms {}\n",
            grant.key,
            grant.slot,
            self.slots,
            grant.owner,
            grant.token,
            to_millis(self.ttl),
            to_millis(expires.since_boot()),
        );
        let table = self.table.as_deref().unwrap_or_default();
        if !table.is_empty() && !table.contains(char::is_control) {
            // A string takes everything.
            writeln!(text, "table {table}").ok();
        }
        text
    }

    /// Understands a file's text.
    fn parse(text: &str) -> Option<(Self, Standing)> {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return None;
        }
        let lines: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(' ')).collect();
        let value = |name| {
            let mut found = lines.iter().filter(|(other, _)| *other == name);
            found.next().map(|(_, value)| *value)
        };
        let millis = |name| Some(Duration::from_millis(value(name)?.parse().ok()?));
        let record = Self {
            grant: Grant {
                key: Key::new(value("key")?).ok()?,
                slot: value("slot")?.parse().ok()?,
                owner: value("owner")?.parse().ok()?,
                token: Token(value("token")?.parse().ok()?),
            },
            slots: value("slots")?.parse().ok()?,
            ttl: millis("ttl_ms")?,
            table: value("table").map(str::to_owned),
        };
        let standing = match value("state")? {
            "held" => Standing::Held(Tick::from_boot(millis("expires_ms")?)),
            "lost" => Standing::Lost,
            "over" => Standing::Over,
            _ => return None,
        };
        Some((record, standing))
    }
}

/// The file, on dblock's side.
#[derive(Debug)]
pub struct LeaseFile {
    /// Closed if a change could not be told: then the file must not be found.
    file: Option<OwnedFd>,
    place: Place,
    told: Option<Standing>,
}

impl LeaseFile {
    /// Makes the file, which says nothing yet. To be called before the lock is
    /// asked for, so that a system without memory for it grants nothing.
    ///
    /// # Errors
    ///
    /// Returns what the system says.
    pub fn new() -> io::Result<Self> {
        let file = sealed("")?;
        let place = Place {
            pid: getpid(),
            descriptor: file.as_raw_fd(),
            namespaces: Namespaces::own(),
        };
        Ok(Self {
            file: Some(file),
            place,
            told: None,
        })
    }

    /// Returns where the job finds the file.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Lets the job know how its lease stands.
    pub fn publish(&mut self, record: &Record, standing: Standing) {
        if self.told == Some(standing) {
            return;
        }
        let Some(file) = &mut self.file else {
            return;
        };
        let told = sealed(&record.text(standing))
            .and_then(|new| Ok(dup3(&new, file, OFlag::O_CLOEXEC)?))
            .is_ok();
        if told {
            self.told = Some(standing);
        } else if !matches!(standing, Standing::Held(_)) {
            // What is there says that the lease is held. An old moment runs out
            // by itself, but this must not be believed until then.
            self.file = None;
        }
    }
}

/// Returns a new file in memory with this text, which nobody can change.
fn sealed(text: &str) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = fs::File::from(memfd_create(NAME, flags)?);
    file.write_all(text.as_bytes())?;
    let seals = SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

/// Where a lease's file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The dblock that holds the lease.
    pub pid: Pid,
    /// Its descriptor of the file.
    pub descriptor: i32,
    /// Where this number, and the file's moments, mean something.
    pub namespaces: Namespaces,
}

/// The namespaces that give pids and the boot-time clock their meaning
/// (namespaces(7)), by their inode numbers; 0 if the kernel has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// That of the pids.
    pub pid: u64,
    /// That of the clocks.
    pub time: u64,
}

impl Namespaces {
    fn own() -> Self {
        let number =
            |name| fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |found| found.ino());
        Self {
            pid: number("pid"),
            time: number("time"),
        }
    }
}

/// What a lease's file says.
#[derive(Debug)]
pub enum Reading {
    /// The lease is held, for this long at least.
    Held(Record, Duration),
    /// It is not.
    Not(Ended),
    /// Nothing is known, for this reason.
    Unreadable(String),
}

/// Why a lease is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The dblock that held it is not there.
    Gone,
    /// That dblock has not renewed it in time.
    Expired,
    /// That dblock knows that it is lost.
    Lost,
    /// That dblock has given it back, or is about to.
    Over,
}

impl Place {
    /// Returns the path that the job is given.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", self.pid, self.descriptor).into()
    }

    /// Reads the file of the lease that has this owner id.
    #[must_use]
    pub fn read(&self, owner: &Owner) -> Reading {
        if Namespaces::own() != self.namespaces {
            let why = "it is in another pid or time namespace, or /proc is not there";
            return Reading::Unreadable(why.to_owned());
        }
        let text = match self.text() {
            Ok(text) => text,
            Err(error) => return self.judge(&error),
        };
        // Pids are given again, also to other dblocks.
        match Record::parse(&text).filter(|(record, _)| record.grant.owner == *owner) {
            None => Reading::Not(Ended::Gone),
            Some((_, Standing::Lost)) => Reading::Not(Ended::Lost),
            Some((_, Standing::Over)) => Reading::Not(Ended::Over),
            Some((record, Standing::Held(expires))) => match expires - clock::now() {
                Duration::ZERO => Reading::Not(Ended::Expired),
                left => Reading::Held(record, left),
            },
        }
    }

    fn text(&self) -> io::Result<String> {
        let path = self.path();
        let found = fs::read_link(&path)?;
        // Reading what is somebody else's, a pipe for instance, would take
        // something away from him.
        if !found.to_string_lossy().contains(NAME) {
            return Ok(String::new());
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let mut text = String::new();
        let file = options.open(&path)?;
        file.take(SIZE_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Tells a dblock that is gone from one that may not be looked at.
    fn judge(&self, error: &io::Error) -> Reading {
        let asked = kill(self.pid, None);
        let dead = Entry::of(self.pid).is_some_and(|entry| entry.is_dead());
        let missing = error.kind() == io::ErrorKind::NotFound;
        if dead || asked == Err(Errno::ESRCH) || (missing && asked.is_ok()) {
            Reading::Not(Ended::Gone)
        } else {
            Reading::Unreadable(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            grant: Grant {
                key: Key::new("nightly report äöü").expect("a key"),
                slot: 2,
                owner: Owner::generate(),
                token: Token(u64::MAX),
            },
            slots: 3,
            ttl: Duration::from_secs(30),
            table: Some("`a b`.dblock_lock".to_owned()),
        }
    }

    fn soon() -> Standing {
        // In whole milliseconds, as the file has it.
        let now = to_millis(clock::now().since_boot());
        Standing::Held(Tick::from_boot(Duration::from_millis(now + 60_000)))
    }

    #[test]
    fn what_is_written_is_read() {
        for standing in [soon(), Standing::Lost, Standing::Over] {
            let record = record();
            let read = Record::parse(&record.text(standing));
            assert_eq!(read, Some((record, standing)));
        }
        let whole = record().text(soon());
        for end in 0..whole.len() - 1 {
            let read = Record::parse(
                &whole[..end
                    - (0..4)
                        .find(|n| whole.is_char_boundary(end - n))
                        .expect("a boundary")],
            );
            // The last line alone may be missing: it changes nothing about the lease.
            if let Some((read, standing)) = read {
                assert_eq!(read.grant.owner.as_str().len(), 36);
                assert!(matches!(standing, Standing::Held(_)));
            }
        }
    }

    #[test]
    fn each_change_takes_the_place_of_the_one_before() {
        let record = record();
        let owner = &record.grant.owner;
        let mut file = LeaseFile::new().expect("a file");
        let place = *file.place();
        assert!(matches!(place.read(owner), Reading::Not(Ended::Gone)));
        file.publish(&record, soon());
        let Reading::Held(read, left) = place.read(owner) else {
            panic!("not held");
        };
        assert_eq!(read, record);
        assert!(left <= Duration::from_secs(60));
        let other = Owner::generate();
        assert!(matches!(place.read(&other), Reading::Not(Ended::Gone)));
        file.publish(&record, Standing::Held(clock::now()));
        assert!(matches!(place.read(owner), Reading::Not(Ended::Expired)));
        file.publish(&record, Standing::Lost);
        assert!(matches!(place.read(owner), Reading::Not(Ended::Lost)));
        file.publish(&record, Standing::Over);
        assert!(matches!(place.read(owner), Reading::Not(Ended::Over)));
        assert!(
            OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(place.path())
                .is_err()
        );
        drop(file);
        assert!(matches!(place.read(owner), Reading::Not(Ended::Gone)));
    }

    #[test]
    fn what_is_elsewhere_is_not_believed() {
        let record = record();
        let mut file = LeaseFile::new().expect("a file");
        file.publish(&record, soon());
        let mut place = *file.place();
        place.namespaces.time += 1;
        let owner = &record.grant.owner;
        assert!(matches!(place.read(owner), Reading::Unreadable(_)));
    }
}
