//! The words of the lock: key, owner, token, TTL, and the descriptions of a
//! request and of a holder. Everything here is parsed once and then true, so
//! that no other module checks a raw string again.
//!
//! This module must not know the command line, SQL or any store.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};
use thiserror::Error;

/// Longest key, in bytes of UTF-8: what the `lock_key` column holds on every
/// store, whatever the characters are.
pub const KEY_MAX_BYTES: usize = 255;

/// The name of a lock.
///
/// 1 to 255 bytes of UTF-8, no control characters, no blank at either end. Two
/// keys are the same lock only if they are the same bytes. A blank at the end
/// is refused because it is the one thing that the binary collation of MySQL's
/// `utf8mb4_bin` takes as equal to nothing; the other rules keep keys readable
/// in a table and in a log line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Key(String);

/// The reason why a text is not a key.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// The text has no bytes.
    #[error("a key must not be empty")]
    Empty,
    /// The text is longer than [`KEY_MAX_BYTES`]; holds its length in bytes.
    #[error("a key has at most {KEY_MAX_BYTES} bytes of UTF-8, this one has {0}")]
    TooLong(usize),
    /// A control character stands at this byte.
    #[error("a key must not contain control characters (there is one at byte {0})")]
    Control(usize),
    /// The text starts or ends with white space.
    #[error("a key must not start or end with a blank")]
    Blank,
}

impl Key {
    /// Returns the key for `text`.
    ///
    /// # Errors
    ///
    /// Returns the first rule that `text` breaks.
    pub fn new(text: impl Into<String>) -> Result<Self, KeyError> {
        let text = text.into();
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        if text.len() > KEY_MAX_BYTES {
            return Err(KeyError::TooLong(text.len()));
        }
        if let Some((at, _)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return Err(KeyError::Control(at));
        }
        if text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) {
            return Err(KeyError::Blank);
        }
        Ok(Self(text))
    }

    /// Returns the key of a row, which another program may have written
    /// against the rules, so that it can still be shown and removed.
    #[must_use]
    pub fn from_store(text: String) -> Self {
        Self(text)
    }

    /// Returns the key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::new(text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The identity of one grant: a UUID, new for each attempt to acquire, so that
/// a statement which a server carries out long after its client gave up can
/// never change a later grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Owner(String);

/// The text is not an owner id.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("an owner id is a UUID, as printed by 'dblock acquire' and 'dblock status'")]
pub struct OwnerError;

impl Owner {
    /// Returns a new owner id that nobody else has.
    #[must_use]
    pub fn generate() -> Self {
        Self(uuid::Uuid::new_v4().hyphenated().to_string())
    }

    /// Returns the owner id of a row as it stands, even if it is no UUID: a
    /// row that somebody made by hand must still be shown and removable.
    #[must_use]
    pub fn from_store(text: String) -> Self {
        Self(text)
    }

    /// Returns the id's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Owner {
    type Err = OwnerError;

    fn from_str(text: &str) -> Result<Self, OwnerError> {
        let id = uuid::Uuid::try_parse(text).map_err(|_| OwnerError)?;
        Ok(Self(id.hyphenated().to_string()))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The fencing token of a grant: larger than the token of every earlier grant
/// of the same key, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The length of a lease: 1 second to 30 days, in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

/// The duration is no TTL.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a TTL is at least 1s and at most 30d")]
pub struct TtlError;

impl Ttl {
    /// Shortest TTL. Below it the time for a renewal, for stopping the job and
    /// for the safety margin does not fit.
    pub const MIN: Duration = Duration::from_secs(1);
    /// Longest TTL.
    pub const MAX: Duration = Duration::from_secs(30 * 24 * 3600);

    /// Returns the TTL of this length, cut to whole milliseconds.
    ///
    /// # Errors
    ///
    /// Returns an error outside of [`Ttl::MIN`] to [`Ttl::MAX`].
    pub fn new(length: Duration) -> Result<Self, TtlError> {
        if length < Self::MIN || length > Self::MAX {
            return Err(TtlError);
        }
        let whole = u64::try_from(length.as_millis()).map_err(|_| TtlError)?;
        Ok(Self(Duration::from_millis(whole)))
    }

    /// Returns the length.
    #[must_use]
    pub fn get(self) -> Duration {
        self.0
    }

    /// Returns the length in milliseconds.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        to_millis(self.0)
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// Returns a duration in whole milliseconds, the unit of the tables and of the
/// JSON output.
#[must_use]
pub fn to_millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Serializes a duration as whole milliseconds.
///
/// # Errors
///
/// Returns the serializer's own errors.
pub(crate) fn serialize_millis<S: Serializer>(
    length: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(to_millis(*length))
}

/// What a lease is held by: a running `dblock run`, which renews it and stops
/// its job when it is lost, or a program that does the same for its own work,
/// or a script that called `dblock acquire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Held by `dblock run`, or by a program, and renewed.
    Run,
    /// Held by hand, through `dblock acquire` or by a program.
    Acquire,
    /// Kept shut by an operator, through `dblock block`.
    Block,
}

impl Kind {
    /// Returns the word that the tables hold.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Acquire => "acquire",
            Self::Block => "block",
        }
    }

    /// Returns the kind for a table's word. Anything unknown was not made by
    /// `dblock run`, so nobody renews it: it counts as held by hand.
    #[must_use]
    pub fn from_store(word: &str) -> Self {
        match word {
            "run" => Self::Run,
            "block" => Self::Block,
            _ => Self::Acquire,
        }
    }
}

/// Who asks for a lock, for people who look at the table. Nothing here decides
/// anything.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Claimant {
    /// Name of the host.
    pub host: String,
    /// Process id of dblock.
    pub pid: u32,
    /// Name of the user, or the number if it has no name.
    pub user: String,
    /// The job's command line, quoted for a shell; empty for `acquire`.
    pub command: String,
    /// The text given with `--note`.
    pub note: Option<String>,
}

/// Longest text of a column for people, in characters.
pub const TEXT_MAX_CHARS: usize = 255;

impl Claimant {
    /// Returns the claimant with each text cut to what the columns hold
    /// ([`TEXT_MAX_CHARS`] characters), the cut marked with `…`, and with
    /// control characters replaced, so that a command line cannot paint over
    /// somebody's terminal.
    #[must_use]
    pub fn fitted(self) -> Self {
        Self {
            host: fit(&self.host),
            pid: self.pid,
            user: fit(&self.user),
            command: fit(&self.command),
            note: self.note.map(|note| fit(&note)),
        }
    }
}

fn fit(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    if text.chars().count() <= TEXT_MAX_CHARS {
        return shown.collect();
    }
    shown.take(TEXT_MAX_CHARS - 1).chain(['…']).collect()
}

/// What a grant is asked for beyond its key and TTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Number of equal slots under the key, 1 to [`SLOTS_MAX`]; all who share
    /// the key must say the same.
    pub slots: u16,
    /// The slot stays closed for at least this time after the grant.
    pub at_least: Duration,
    /// Not granted if a run that was granted less than this time ago, and
    /// asked for the same, has succeeded.
    pub once_per: Option<Duration>,
    /// If the lease expires, nobody is granted the slot for a further time.
    pub lock_delay: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            slots: 1,
            at_least: Duration::ZERO,
            once_per: None,
            lock_delay: Duration::ZERO,
        }
    }
}

/// Largest number of slots under a key.
pub const SLOTS_MAX: u16 = 1000;

/// The place of a block in the table: a slot that nobody can ask for.
pub const BLOCK_SLOT: u16 = u16::MAX;

/// Returns the slot that a value always has: the CRC-32 of its bytes (IEEE
/// 802.3, as in zlib, gzip and MySQL's `CRC32()`) modulo the number of slots,
/// so that every language can compute it.
#[must_use]
pub fn slot_of(value: &str, slots: u16) -> u16 {
    let slot = crc32fast::hash(value.as_bytes()) % u32::from(slots.max(1));
    u16::try_from(slot).unwrap_or(0)
}

/// One attempt to acquire a key.
#[derive(Clone, Debug)]
pub struct Request {
    /// The key.
    pub key: Key,
    /// The slot to take.
    pub slot: u16,
    /// The lease asked for.
    pub ttl: Ttl,
    /// What else is asked for.
    pub terms: Terms,
    /// The owner id of this attempt; never used for a second one.
    pub owner: Owner,
    /// Owner ids of this process's earlier attempts whose outcome stayed
    /// unknown. The store removes what they may have left.
    pub former: Vec<Owner>,
    /// What the lease will be held by.
    pub kind: Kind,
    /// Who asks.
    pub claimant: Claimant,
}

/// A grant: the right to a slot of a key, and all that is needed to renew and
/// to release it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The key.
    pub key: Key,
    /// The slot under the key; 0 if there is one.
    pub slot: u16,
    /// The identity of the grant.
    pub owner: Owner,
    /// The fencing token.
    pub token: Token,
}

/// The state of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The lease has not expired.
    Held,
    /// The lease has expired and nobody has taken it over.
    Expired,
    /// Nobody holds it, and it is kept shut by [`Terms::at_least`] or
    /// [`Terms::lock_delay`].
    Closing,
    /// Nobody holds it, and it is shut for those who ask for
    /// [`Terms::once_per`].
    #[serde(rename = "closing")]
    Done,
    /// An operator keeps the key shut.
    Blocked,
}

impl State {
    /// Tells whether a row in this state stands in the way of a grant.
    #[must_use]
    pub fn excludes(self, terms: &Terms) -> bool {
        match self {
            Self::Held | Self::Closing | Self::Blocked => true,
            Self::Done => terms.once_per.is_some(),
            Self::Expired => false,
        }
    }
}

/// How far a row has come in its life, as the tables hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It was granted, and has not been given back.
    Held,
    /// It was given back.
    Released,
    /// It was given back by a job that succeeded.
    Done,
    /// It is a block.
    Blocked,
}

impl Phase {
    /// Returns the word that the tables hold.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Released => "released",
            Self::Done => "done",
            Self::Blocked => "blocked",
        }
    }

    /// Returns the phase for a table's word. Anything unknown counts as held,
    /// so that it excludes until it expires.
    #[must_use]
    pub fn from_store(word: &str) -> Self {
        match word {
            "released" => Self::Released,
            "done" => Self::Done,
            "blocked" => Self::Blocked,
            _ => Self::Held,
        }
    }
}

/// The moments of a row, from the store's present moment on, in the store's
/// own unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moments {
    /// How far the row has come.
    pub phase: Phase,
    /// When the lease expires.
    pub lease: i64,
    /// How much later others may be granted the slot, if it expires.
    pub delay: i64,
    /// Until when the slot is kept closed.
    pub keep: i64,
    /// Until when a success counts.
    pub done: i64,
}

impl Moments {
    /// Returns the row's state and what is left of it, or nothing if the row
    /// means nothing any more. The stores' conditions for a grant say the
    /// same.
    #[must_use]
    pub fn state(&self) -> Option<(State, u64)> {
        let closed = self.lease.saturating_add(self.delay).max(self.keep);
        let (state, left) = match self.phase {
            Phase::Blocked if self.lease > 0 => (State::Blocked, self.lease),
            Phase::Blocked => return None,
            Phase::Held if self.lease > 0 => (State::Held, self.lease),
            _ if closed > 0 => (State::Closing, closed),
            Phase::Done if self.done > 0 => (State::Done, self.done),
            Phase::Held => (State::Expired, 0),
            Phase::Released | Phase::Done => return None,
        };
        Some((state, u64::try_from(left).unwrap_or(0)))
    }
}

/// Somebody who waits for a key, so that people can see it. Nothing here
/// decides who is granted the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The identity of the wait.
    pub id: Owner,
    /// The key.
    pub key: Key,
    /// Name of the host.
    pub host: String,
    /// Process id of dblock.
    pub pid: u32,
    /// Name of the user.
    pub user: String,
    /// Time since the wait began.
    pub waiting: Duration,
}

/// A row of the table, as the store sees it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The grant that the row stands for.
    pub grant: Grant,
    /// The state, by the store's clock.
    pub state: State,
    /// What the lease is held by.
    pub kind: Kind,
    /// Number of equal slots that the holder asked for.
    pub slots: u16,
    /// Who holds it.
    pub claimant: Claimant,
    /// Time of the grant in milliseconds since 1970 UTC, for people; `None`
    /// if the row holds nonsense.
    pub acquired_at: Option<i64>,
    /// Time since the grant; zero if it is unknown.
    pub held: Duration,
    /// What is left of the state by the store's clock; zero when expired.
    pub remaining: Duration,
    /// The lease's length.
    pub ttl: Duration,
    /// Number of renewals so far.
    pub renewals: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_at_the_limits() {
        assert!(Key::new("a").is_ok());
        assert!(Key::new("x".repeat(255)).is_ok());
        assert_eq!(Key::new("x".repeat(256)), Err(KeyError::TooLong(256)));
        // 64 emoji are 256 bytes although they are only 64 characters.
        assert_eq!(Key::new("😀".repeat(64)), Err(KeyError::TooLong(256)));
        assert!(Key::new(format!("{}abc", "😀".repeat(63))).is_ok());
        assert_eq!(Key::new(""), Err(KeyError::Empty));
        assert_eq!(Key::new("a\nb"), Err(KeyError::Control(1)));
        assert_eq!(Key::new("a\u{85}b"), Err(KeyError::Control(1)));
        assert_eq!(Key::new(" a"), Err(KeyError::Blank));
        assert_eq!(Key::new("a\u{3000}"), Err(KeyError::Blank));
        assert!(Key::new("a b").is_ok());
        assert!(Key::new("a\u{200b}").is_ok(), "zero-width is not a blank");
    }

    #[test]
    fn ttl_at_the_limits() {
        assert_eq!(Ttl::new(Duration::from_millis(999)), Err(TtlError));
        assert_eq!(Ttl::new(Duration::ZERO), Err(TtlError));
        assert_eq!(Ttl::new(Duration::MAX), Err(TtlError));
        assert_eq!(Ttl::new(Ttl::MAX + Duration::from_nanos(1)), Err(TtlError));
        assert_eq!(Ttl::new(Ttl::MIN).map(Ttl::as_millis), Ok(1000));
        assert_eq!(Ttl::new(Ttl::MAX).map(Ttl::as_millis), Ok(2_592_000_000));
        let cut = Ttl::new(Duration::from_micros(1_500_900)).map(Ttl::get);
        assert_eq!(cut, Ok(Duration::from_millis(1500)));
    }

    #[test]
    fn slots_of_values_are_those_of_crc_32() {
        // SELECT CRC32('123456789') is 3421780262.
        assert_eq!(u64::from(slot_of("123456789", 1000)), 3_421_780_262 % 1000);
        assert_eq!(slot_of("", 7), 0);
        assert_eq!(slot_of("anything", 1), 0);
    }

    #[test]
    fn the_states_of_a_row() {
        let moments = |phase, lease, delay, keep, done| {
            let moments = Moments {
                phase,
                lease,
                delay,
                keep,
                done,
            };
            moments.state()
        };
        use Phase::{Blocked, Done, Held, Released};
        assert_eq!(moments(Held, 5, 9, 9, 9), Some((State::Held, 5)));
        assert_eq!(moments(Held, 0, 0, 0, 9), Some((State::Expired, 0)));
        assert_eq!(moments(Held, -4, 9, 0, 0), Some((State::Closing, 5)));
        assert_eq!(moments(Held, -4, 9, 7, 0), Some((State::Closing, 7)));
        assert_eq!(moments(Held, -9, 9, 0, 0), Some((State::Expired, 0)));
        assert_eq!(moments(Released, 0, 0, 3, 8), Some((State::Closing, 3)));
        assert_eq!(moments(Released, 0, 0, 0, 8), None);
        assert_eq!(moments(Done, 0, 0, 3, 8), Some((State::Closing, 3)));
        assert_eq!(moments(Done, 0, 0, 0, 8), Some((State::Done, 8)));
        assert_eq!(moments(Done, 0, 0, 0, 0), None);
        assert_eq!(moments(Blocked, 8, 0, 0, 0), Some((State::Blocked, 8)));
        assert_eq!(moments(Blocked, 0, 0, 0, 0), None);
        // Whatever another program has written.
        let odd = moments(Held, i64::MIN, i64::MAX, i64::MIN, 0);
        assert_eq!(odd, Some((State::Expired, 0)));
        let far = moments(Held, i64::MAX, i64::MAX, 0, 0);
        assert_eq!(far.map(|(state, _)| state), Some(State::Held));
    }

    #[test]
    fn owner_is_a_uuid() {
        let id = Owner::generate();
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert_eq!(id.as_str().to_uppercase().parse(), Ok(id));
        assert_eq!("me".parse::<Owner>(), Err(OwnerError));
        assert_eq!("".parse::<Owner>(), Err(OwnerError));
    }

    #[test]
    fn texts_for_people_fit_and_cannot_paint() {
        let long = Claimant {
            command: "é".repeat(300),
            note: Some("a\u{1b}[2Jb".into()),
            ..Claimant::default()
        }
        .fitted();
        assert_eq!(long.command.chars().count(), TEXT_MAX_CHARS);
        assert!(long.command.ends_with('…'));
        assert_eq!(long.note.as_deref(), Some("a [2Jb"));
    }

    proptest! {
        #[test]
        fn a_key_keeps_its_bytes(text in "\\PC{0,300}") {
            if let Ok(key) = Key::new(text.clone()) {
                prop_assert_eq!(key.as_str(), &text);
                prop_assert!(!text.is_empty() && text.len() <= KEY_MAX_BYTES);
                prop_assert_eq!(text.trim(), &text);
            }
        }
    }
}
