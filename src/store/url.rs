//! The parts of URLs that every store's parser needs, and the secrets in them.
//!
//! The database driver's own URL parser is not used: it knows neither several
//! hosts nor the options that MySQL users expect, and its errors repeat what
//! they could not parse.

#![cfg_attr(
    not(any(feature = "mysql", test)),
    expect(dead_code, reason = "only stores on a server have hosts and logins")
)]

use std::fmt;

use percent_encoding::percent_decode_str;
use thiserror::Error;

/// A password: never shown, not even by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a password.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the password itself, for the login alone.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A URL that is none, or that names no store. The text holds nothing of the
/// URL that could be a part of a password.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct UrlError(String);

/// What to do about a password that breaks the URL's syntax.
const ENCODE_HINT: &str = "if the password has special characters, write them percent-encoded \
                           (@ as %40, / as %2F, # as %23, ? as %3F) or use DBLOCK_PASSWORD";

/// What a URL may look like.
const FORMS: &str = "mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH";

impl UrlError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn no_scheme() -> Self {
        Self(format!("not a URL of a store: expected {FORMS}"))
    }

    pub(super) fn unknown_scheme(known: impl Iterator<Item = &'static str>) -> Self {
        let known: Vec<_> = known.collect();
        Self(format!(
            "unknown scheme, known are {}: expected {FORMS}",
            known.join(" and ")
        ))
    }

    #[cfg_attr(
        all(feature = "mysql", feature = "sqlite"),
        expect(dead_code, reason = "nothing is left out of this build")
    )]
    pub(super) fn left_out(feature: &str) -> Self {
        Self(format!(
            "this dblock was built without the Cargo feature '{feature}'"
        ))
    }
}

/// A host and a port to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// The parts of `//[user[:password]@]host[:port][,host…]/database[?name=value…]`,
/// percent-decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) hosts: Vec<Host>,
    pub(super) database: String,
    pub(super) parameters: Vec<(String, String)>,
}

/// Takes a URL's part behind the scheme's colon apart.
pub(super) fn parse(rest: &str, default_port: u16) -> Result<Parts, UrlError> {
    let rest = rest.strip_prefix("//").ok_or_else(|| {
        UrlError::new(format!(
            "'//' is missing behind the scheme: expected {FORMS}"
        ))
    })?;
    if rest.contains('#') {
        return Err(UrlError::new(format!(
            "a '#' must not stand in a URL; {ENCODE_HINT}"
        )));
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    let (user, password) =
        match login.map(|l| l.split_once(':').map_or((l, None), |(u, p)| (u, Some(p)))) {
            Some((user, password)) => (
                Some(decode(user)?).filter(|user| !user.is_empty()),
                password.map(decode).transpose()?.map(Secret::new),
            ),
            None => (None, None),
        };
    let hosts = if hosts.is_empty() {
        Vec::new()
    } else {
        hosts
            .split(',')
            .map(|host| parse_host(host, default_port))
            .collect::<Result<_, _>>()?
    };
    if path.contains('/') {
        return Err(UrlError::new(format!(
            "the database's name must not contain a bare '/'; {ENCODE_HINT}"
        )));
    }
    let parameters = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                UrlError::new(format!(
                    "each parameter behind the '?' is NAME=VALUE; {ENCODE_HINT}"
                ))
            })?;
            Ok((decode(name)?, decode(value)?))
        })
        .collect::<Result<_, UrlError>>()?;
    Ok(Parts {
        user,
        password,
        hosts,
        database: decode(path)?,
        parameters,
    })
}

fn parse_host(text: &str, default_port: u16) -> Result<Host, UrlError> {
    let bad_port = || {
        UrlError::new(format!(
            "the port is not a number from 1 to 65535; {ENCODE_HINT}"
        ))
    };
    let (name, port) = if let Some(inside) = text.strip_prefix('[') {
        let (address, behind) = inside
            .split_once(']')
            .ok_or_else(|| UrlError::new("an IPv6 address is not closed by ']'"))?;
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(UrlError::new("what stands in '[…]' is not an IPv6 address"));
        }
        let port = match behind.strip_prefix(':') {
            Some(port) => Some(port),
            None if behind.is_empty() => None,
            None => return Err(bad_port()),
        };
        (address, port)
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(UrlError::new(format!(
                    "more than one ':' behind the host; write an IPv6 address in '[…]'; {ENCODE_HINT}"
                )));
            }
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        }
    };
    let port = match port {
        Some(digits) => digits
            .parse()
            .ok()
            .filter(|&port| port != 0 && digits.bytes().all(|b| b.is_ascii_digit()))
            .ok_or_else(bad_port)?,
        None => default_port,
    };
    let name = decode(name)?;
    if name.is_empty() {
        return Err(UrlError::new("a host's name is missing"));
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(UrlError::new("a host's name must not contain blanks"));
    }
    Ok(Host { name, port })
}

/// Decodes `%XX`. A `%` that starts no such pair stands for itself, as in the
/// URLs of other MySQL programs.
fn decode(text: &str) -> Result<String, UrlError> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| UrlError::new("the percent-encoded bytes are not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(rest: &str) -> Result<String, UrlError> {
        parse(rest, 3306).map(|parts| parts.password.expect("a password").reveal().to_owned())
    }

    #[test]
    fn all_parts() {
        let parts = parse("//u:p@h1,[::1]:33,h3:44/db%20x?socket=%2Fa%2Fb", 3306).expect("a URL");
        assert_eq!(parts.user.as_deref(), Some("u"));
        let hosts: Vec<_> = parts.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h1:3306", "[::1]:33", "h3:44"]);
        assert_eq!(parts.database, "db x");
        assert_eq!(parts.parameters, [("socket".to_owned(), "/a/b".to_owned())]);
    }

    #[test]
    fn passwords_encoded_and_raw() {
        assert_eq!(
            password("//u:p%40ss%3Aw%2Fr%3Fd%23%25@h/d").as_deref(),
            Ok("p@ss:w/r?d#%")
        );
        assert_eq!(password("//u:p%w@h/d").as_deref(), Ok("p%w"));
        assert_eq!(password("//u:p%41w@h/d").as_deref(), Ok("pAw"));
        assert_eq!(password("//u:p@w@h/d").as_deref(), Ok("p@w"));
        assert_eq!(password("//u:p:w@h/d").as_deref(), Ok("p:w"));
        assert_eq!(password("//u:ä+@h/d").as_deref(), Ok("ä+"));
        assert_eq!(password("//u:@h/d").as_deref(), Ok(""));
    }

    #[test]
    fn refusals_hint_and_hide() {
        for rest in [
            "//u:s3cr#et@h/d",
            "//u:s3cr?et@h/d",
            "//u:s3cr/et@h/d",
            "//u:s3cr/e/t@h/d",
            "//u:s3cret@h:0/d",
            "//u:s3cret@h:65536/d",
            "//u:s3cret@h:+1/d",
            "//u:s3cret@[::1/d",
            "//u:s3cret@[::g]/d",
            "//u:s3cret@::1/d",
            "//u:s3cret@a b/d",
            "//u:s3cret@h,/d",
            "//u:s3cret%ff@h/d",
            "//u:s3cret@h/d?x",
            "/u:s3cret@h/d",
        ] {
            let error = parse(rest, 3306).expect_err(rest).to_string();
            assert!(
                !error.contains("s3cr") && !error.contains("et@"),
                "{rest}: {error}"
            );
        }
    }

    #[test]
    fn a_secret_has_no_debug_text() {
        let parts = parse("//u:s3cret@h/d", 3306).expect("a URL");
        assert!(!format!("{parts:?}").contains("s3cret"));
    }
}
