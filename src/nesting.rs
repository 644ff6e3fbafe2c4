//! A run inside a job of another run: which leases the jobs around it hold,
//! and whether the key that it wants is one of them.
//!
//! A run that waited for a key which its own surroundings hold would wait for
//! ever. What the environment says is only a hint: it may be a copy, or older
//! than the lease. A lease counts as that of the surroundings if the store has
//! its row, and as proven if the file of the dblock that holds it says so too,
//! and this process is below that dblock.
//!
//! This module must not read the environment or ask a store.

use std::fmt;

use nix::unistd::Pid;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::lease_file::{Namespaces, Place, Reading, Record};
use crate::lock::{Holder, Key, Kind, Owner, State};
use crate::tree;

/// A lease that a job around this process holds, or has held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outer {
    /// The key.
    pub key: Key,
    /// The owner id.
    pub owner: Owner,
    /// Where its file is; `None` if the environment does not say.
    pub place: Option<Place>,
}

impl fmt::Display for Outer {
    /// Shows the lease as a word of `DBLOCK_HELD`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = utf8_percent_encode(self.key.as_str(), NON_ALPHANUMERIC);
        write!(f, "{key}:{}", self.owner)?;
        if let Some(place) = &self.place {
            let Namespaces { pid, time } = place.namespaces;
            write!(f, ":{}:{}:{pid}:{time}", place.pid, place.descriptor)?;
        }
        Ok(())
    }
}

/// Returns the value of `DBLOCK_HELD` for these leases, the outermost first.
#[must_use]
pub fn encode(outers: &[Outer]) -> String {
    let words: Vec<String> = outers.iter().map(ToString::to_string).collect();
    words.join(" ")
}

/// Understands a value of `DBLOCK_HELD`.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<Outer>> {
    text.split_ascii_whitespace().map(decode_word).collect()
}

fn decode_word(word: &str) -> Option<Outer> {
    let mut fields = word.split(':');
    let key = percent_decode_str(fields.next()?).decode_utf8().ok()?;
    let key = Key::new(key).ok()?;
    let owner = fields.next()?.parse().ok()?;
    let place = match fields.next() {
        None => None,
        Some(pid) => Some(Place {
            // kill(2) takes 0 and less for a group.
            pid: Pid::from_raw(pid.parse().ok().filter(|pid| *pid > 0)?),
            descriptor: fields.next()?.parse().ok()?,
            namespaces: Namespaces {
                pid: fields.next()?.parse().ok()?,
                time: fields.next()?.parse().ok()?,
            },
        }),
    };
    fields
        .next()
        .is_none()
        .then_some(Outer { key, owner, place })
}

/// An outer lease of the wanted key, which may be held.
#[derive(Debug)]
pub struct Candidate {
    /// The lease.
    pub outer: Outer,
    /// What its file says, or why it proves nothing.
    pub proof: Result<Record, String>,
}

/// Returns the leases of the key that may be held, the innermost first. Those
/// whose files say that they are over are not among them.
#[must_use]
pub fn candidates(outers: &[Outer], key: &Key) -> Vec<Candidate> {
    let own = outers.iter().rev().filter(|outer| outer.key == *key);
    own.filter_map(|outer| {
        let proof = match &outer.place {
            None => Err("the environment does not say where its file is".to_owned()),
            Some(place) => match place.read(&outer.owner) {
                Reading::Not(_) => return None,
                Reading::Unreadable(why) => Err(format!("its file cannot be read: {why}")),
                Reading::Held(..) if !tree::is_below(place.pid) => {
                    let why = "this process is not below the dblock that holds it";
                    Err(why.to_owned())
                }
                Reading::Held(record, _) => Ok(record),
            },
        };
        Some(Candidate {
            outer: outer.clone(),
            proof,
        })
    })
    .collect()
}

/// Returns the candidate that holds what is wanted, with its row, given the
/// rows that the store has under the key: another store has no such row, and
/// another slot is another lock.
#[must_use]
pub fn surrounding<'a, 'b>(
    candidates: &'a [Candidate],
    slot: Option<u16>,
    rows: &'b [Holder],
) -> Option<(&'a Candidate, &'b Holder)> {
    candidates.iter().find_map(|candidate| {
        let row = rows.iter().find(|row| {
            row.grant.owner == candidate.outer.owner
                && row.state == State::Held
                && row.kind == Kind::Run
                && slot.is_none_or(|slot| slot == row.grant.slot)
        })?;
        Some((candidate, row))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outer(key: &str, place: bool) -> Outer {
        Outer {
            key: Key::new(key).expect("a key"),
            owner: Owner::generate(),
            place: place.then_some(Place {
                pid: Pid::from_raw(4242),
                descriptor: 7,
                namespaces: Namespaces {
                    pid: 4_026_531_836,
                    time: 0,
                },
            }),
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = encode(&[outer("a", true)]);
        assert!(decode(&good).is_some());
        assert_eq!(decode(""), Some(Vec::new()));
        for bad in [
            "a",
            "a:b",
            ":00000000-0000-4000-8000-000000000000",
            &format!("{good}:1"),
            &good.replace(":4242:", ":-1:"),
            &good.replace(":4242:", ":0:"),
            &good.replace(":7:", ":"),
        ] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_keys_come_back(keys in proptest::collection::vec("[^\\p{C}\\s]{1,20}( [:%, ]{1,3}x)?", 0..5)) {
            let outers: Vec<Outer> = keys.iter().enumerate().map(|(n, key)| outer(key, n % 2 == 0)).collect();
            prop_assert_eq!(decode(&encode(&outers)), Some(outers));
        }
    }
}
