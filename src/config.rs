//! Where the lock lives and who asks: command line, environment and files,
//! made into settings once. The only module that reads the environment.
//!
//! This module must not connect to anything.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use crate::cli::{self, StoreArgs};
use crate::lock::{Claimant, Key, Owner};
use crate::nesting::{self, Outer};
use crate::store::{self, Endpoint, Secret};

/// Variables that may hold credentials. They are not for the job.
pub const CREDENTIALS: &[&str] = &["DBLOCK_URL", "DBLOCK_PASSWORD", "DBLOCK_PASSWORD_FILE"];

/// Limit for a connection while no lease is held, unless set otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the configuration says.
#[derive(Debug)]
pub struct Settings {
    /// The store.
    pub endpoint: Box<dyn Endpoint>,
    /// Limit for a connection with all its phases.
    pub connect_timeout: Duration,
}

/// Why there are no settings. No text holds a secret.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A URL on the command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Nothing is configured, or a variable or file makes no sense.
    #[error("{0}")]
    Config(String),
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ConfigFile {
    url: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    connect_timeout: Option<Length>,
}

/// A duration in a file: a text, or a number of seconds.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Length {
    Text(String),
    Seconds(u32),
}

impl Length {
    fn read(&self) -> Result<Duration, String> {
        match self {
            Self::Text(text) => cli::positive_duration(text),
            Self::Seconds(number) => cli::positive_duration(&number.to_string()),
        }
    }
}

/// Returns the settings for these arguments, this process's environment and
/// the configuration files.
///
/// # Errors
///
/// See [`ConfigError`].
pub fn settings(args: &StoreArgs) -> Result<Settings, ConfigError> {
    settings_if_any(args)?.ok_or_else(nothing_configured)
}

/// Returns the settings as [`settings`] does, or nothing if nobody has said
/// where the lock lives.
///
/// # Errors
///
/// See [`ConfigError`].
pub fn settings_if_any(args: &StoreArgs) -> Result<Option<Settings>, ConfigError> {
    find(args, &Environment::of_process())
}

/// The part of the environment that matters, read once.
#[derive(Debug, Default)]
struct Environment {
    url: Option<OsString>,
    password: Option<OsString>,
    password_file: Option<OsString>,
    config: Option<OsString>,
    xdg_config_home: Option<OsString>,
    xdg_state_home: Option<OsString>,
    home: Option<OsString>,
    is_root: bool,
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the environment"
)]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns a variable that names a folder. A relative one must be ignored (XDG
/// Base Directory Specification): it would mean another file in each folder.
fn folder(name: &str) -> Option<OsString> {
    variable(name).filter(|path| Path::new(path).is_absolute())
}

impl Environment {
    fn of_process() -> Self {
        Self {
            url: variable("DBLOCK_URL"),
            password: variable("DBLOCK_PASSWORD"),
            password_file: variable("DBLOCK_PASSWORD_FILE"),
            config: variable("DBLOCK_CONFIG"),
            xdg_config_home: folder("XDG_CONFIG_HOME"),
            xdg_state_home: folder("XDG_STATE_HOME"),
            home: folder("HOME"),
            is_root: nix::unistd::geteuid().is_root(),
        }
    }

    /// Returns the file that `--local` means: in root's own place for root,
    /// else in the user's folder for state (XDG Base Directory Specification).
    fn local_file(&self) -> Result<PathBuf, ConfigError> {
        if self.is_root {
            return Ok("/var/lib/dblock/locks.db".into());
        }
        let state = match (&self.xdg_state_home, &self.home) {
            (Some(state), _) => PathBuf::from(state),
            (None, Some(home)) => Path::new(home).join(".local/state"),
            (None, None) => {
                return Err(ConfigError::Config(
                    "--local needs HOME or XDG_STATE_HOME; name a file with --url sqlite:PATH instead"
                        .to_owned(),
                ));
            }
        };
        Ok(state.join("dblock/locks.db"))
    }

    /// Returns the configuration files that nobody named, first choice first.
    fn usual_files(&self) -> Vec<PathBuf> {
        let own = match (&self.xdg_config_home, &self.home) {
            (Some(config), _) => Some(PathBuf::from(config)),
            (None, Some(home)) => Some(Path::new(home).join(".config")),
            (None, None) => None,
        };
        own.map(|folder| folder.join("dblock/config.toml"))
            .into_iter()
            .chain(["/etc/dblock/config.toml".into()])
            .collect()
    }

    /// Returns the password that the environment gives for URLs without one.
    fn password(&self) -> Result<Option<Secret>, ConfigError> {
        if let Some(text) = &self.password {
            let text = text.to_str().ok_or_else(|| not_utf8("DBLOCK_PASSWORD"))?;
            return Ok(Some(Secret::new(text.to_owned())));
        }
        match &self.password_file {
            Some(path) => read_password(Path::new(path), "DBLOCK_PASSWORD_FILE").map(Some),
            None => Ok(None),
        }
    }
}

fn find(args: &StoreArgs, environment: &Environment) -> Result<Option<Settings>, ConfigError> {
    let named = args
        .config
        .clone()
        .or_else(|| environment.config.as_ref().map(PathBuf::from));
    let named = named.map(|path| read_named(&path).map(|file| (path, file)));
    let named = named.transpose()?;
    let connect_timeout = |file: Option<&(PathBuf, ConfigFile)>| {
        if let Some(length) = args.connect_timeout {
            return Ok(length);
        }
        match file.and_then(|(path, file)| Some((path, file.connect_timeout.as_ref()?))) {
            Some((path, length)) => length.read().map_err(|error| {
                ConfigError::Config(format!("connect-timeout in {}: {error}", path.display()))
            }),
            None => Ok(CONNECT_TIMEOUT),
        }
    };

    if args.local {
        let endpoint = store::embedded(&environment.local_file()?)
            .map_err(|error| ConfigError::Config(error.to_string()))?;
        return Ok(Some(Settings {
            endpoint,
            connect_timeout: connect_timeout(named.as_ref())?,
        }));
    }
    if let Some(url) = &args.url {
        let wrong = |why: &dyn std::fmt::Display| ConfigError::Usage(format!("--url: {why}"));
        let url = url.to_str().ok_or_else(|| wrong(&"it is not UTF-8"))?;
        let endpoint =
            store::endpoint(url, environment.password()?).map_err(|error| wrong(&error))?;
        return Ok(Some(Settings {
            endpoint,
            connect_timeout: connect_timeout(named.as_ref())?,
        }));
    }
    if let Some(url) = &environment.url {
        let url = url.to_str().ok_or_else(|| not_utf8("DBLOCK_URL"))?;
        let endpoint = store::endpoint(url, environment.password()?)
            .map_err(|error| ConfigError::Config(format!("DBLOCK_URL: {error}")))?;
        return Ok(Some(Settings {
            endpoint,
            connect_timeout: connect_timeout(named.as_ref())?,
        }));
    }
    let found = match named {
        Some(named) => Some(named),
        None => read_usual(&environment.usual_files())?,
    };
    let Some((path, file)) = &found else {
        return Ok(None);
    };
    let Some(url) = &file.url else {
        return Err(ConfigError::Config(format!(
            "{} has no 'url'; add one, such as url = \"mysql://USER@HOST/DATABASE\"",
            path.display()
        )));
    };
    let password = match environment.password()? {
        Some(password) => Some(password),
        None => file_password(path, file)?,
    };
    let endpoint = store::endpoint(url, password)
        .map_err(|error| ConfigError::Config(format!("url in {}: {error}", path.display())))?;
    Ok(Some(Settings {
        endpoint,
        connect_timeout: connect_timeout(found.as_ref())?,
    }))
}

/// Returns the error for a command that needs a store.
#[must_use]
pub fn nothing_configured() -> ConfigError {
    ConfigError::Config(
        "no store is configured: for locks among hosts set DBLOCK_URL=mysql://USER@HOST/DATABASE \
         (or --url), for locks on this host alone give --local"
            .to_owned(),
    )
}

fn not_utf8(name: &str) -> ConfigError {
    ConfigError::Config(format!("{name} is not UTF-8"))
}

fn file_password(path: &Path, file: &ConfigFile) -> Result<Option<Secret>, ConfigError> {
    match (&file.password, &file.password_file) {
        (Some(_), Some(_)) => Err(ConfigError::Config(format!(
            "{} has both 'password' and 'password-file'; keep one",
            path.display()
        ))),
        (Some(text), None) => Ok(Some(Secret::new(text.clone()))),
        (None, Some(secret)) => read_password(secret, "password-file").map(Some),
        (None, None) => Ok(None),
    }
}

/// Reads a password from a file. One line end behind it is not part of it:
/// editors and `echo` add one.
fn read_password(path: &Path, source: &str) -> Result<Secret, ConfigError> {
    let failed = |why: &dyn std::fmt::Display| {
        ConfigError::Config(format!(
            "cannot read the password from {} ({source}): {why}",
            path.display()
        ))
    };
    let mut text = String::from_utf8(fs::read(path).map_err(|error| failed(&error))?)
        .map_err(|_| failed(&"it is not UTF-8"))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(Secret::new(text))
}

/// Reads a file that somebody named: it must be there.
fn read_named(path: &Path) -> Result<ConfigFile, ConfigError> {
    let text = fs::read_to_string(path).map_err(|error| {
        ConfigError::Config(format!(
            "cannot read the configuration file {}: {error}",
            path.display()
        ))
    })?;
    parse(path, &text)
}

/// Reads the first of the usual files that is there. One that is there and
/// cannot be read is an error: the next one may name another server.
fn read_usual(paths: &[PathBuf]) -> Result<Option<(PathBuf, ConfigFile)>, ConfigError> {
    for path in paths {
        match fs::read_to_string(path) {
            Ok(text) => return Ok(Some((path.clone(), parse(path, &text)?))),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => {
                return Err(ConfigError::Config(format!(
                    "cannot read the configuration file {}: {error}",
                    path.display()
                )));
            }
        }
    }
    Ok(None)
}

/// Parses a file. Only the first line of an error is told: the others quote
/// the file, and a line of it may hold a password.
fn parse(path: &Path, text: &str) -> Result<ConfigFile, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| {
            text.bytes()
                .take(span.start)
                .filter(|&byte| byte == b'\n')
                .count()
                + 1
        });
        ConfigError::Config(format!(
            "{}, line {line}: {}",
            path.display(),
            // An error of the type repeats the value, which may be a password.
            match error.message().lines().next() {
                Some(said) if !said.contains("invalid ") && !said.contains("did not match") => said,
                _ => "the value is not of the right type: texts stand in quotes",
            }
        ))
    })
}

/// Returns who this process is, for the people who look at the table.
/// `command` is the job's, empty if there is none.
#[must_use]
pub fn claimant(command: &[OsString], note: Option<String>) -> Claimant {
    let uid = nix::unistd::geteuid();
    let user = nix::unistd::User::from_uid(uid)
        .ok()
        .flatten()
        .map_or_else(|| uid.to_string(), |user| user.name);
    let host = nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    Claimant {
        host,
        pid: std::process::id(),
        user,
        command: quote(command),
        note,
    }
    .fitted()
}

/// Returns the words as one would type them into a shell.
fn quote(words: &[OsString]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:=@%+,".contains(c);
    let quoted: Vec<String> = words
        .iter()
        .map(|word| {
            let word = word.to_string_lossy();
            if !word.is_empty() && word.chars().all(plain) {
                word.into_owned()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect();
    quoted.join(" ")
}

/// Returns the key and owner of the job that this process runs in.
///
/// # Errors
///
/// Returns an error if there is no such job, or its variables make no sense.
pub fn surrounding_lease() -> Result<(Key, Owner), ConfigError> {
    let missing = || {
        ConfigError::Usage(
            "not inside a job of 'dblock run' (DBLOCK_KEY and DBLOCK_OWNER are not set): \
             give --key and --owner"
                .to_owned(),
        )
    };
    let text = |name| {
        variable(name)
            .ok_or_else(missing)?
            .into_string()
            .map_err(|_| not_utf8(name))
    };
    let wrong = |name: &str, why: &dyn std::fmt::Display| {
        ConfigError::Config(format!("{name} makes no sense: {why}"))
    };
    let key = Key::new(text("DBLOCK_KEY")?).map_err(|error| wrong("DBLOCK_KEY", &error))?;
    let owner = text("DBLOCK_OWNER")?
        .parse()
        .map_err(|error| wrong("DBLOCK_OWNER", &error))?;
    Ok((key, owner))
}

/// Returns the leases that jobs around this process hold or have held, the
/// outermost first.
///
/// # Errors
///
/// Returns an error if the variable with them makes no sense, or there are too
/// many: the guard is told of them in one message.
pub fn outer_leases() -> Result<Vec<Outer>, ConfigError> {
    let mut outers = match variable("DBLOCK_HELD") {
        None => Vec::new(),
        Some(text) if text.len() > HELD_MAX => {
            return Err(ConfigError::Config(format!(
                "jobs are nested too deep: DBLOCK_HELD has more than {HELD_MAX} bytes"
            )));
        }
        Some(text) => text
            .to_str()
            .and_then(nesting::decode)
            .ok_or_else(|| ConfigError::Config("DBLOCK_HELD makes no sense".to_owned()))?,
    };
    // Somebody may have passed on these alone.
    if let Ok((key, owner)) = surrounding_lease()
        && !outers.iter().any(|outer| outer.owner == owner)
    {
        let place = None;
        outers.push(Outer { key, owner, place });
    }
    Ok(outers)
}

/// Longest `DBLOCK_HELD`, in bytes: room for some seventy leases.
const HELD_MAX: usize = 8 << 10;

/// Returns the `PATH` that the job will have.
#[must_use]
pub fn search_path() -> Option<OsString> {
    variable("PATH")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> StoreArgs {
        StoreArgs {
            url: None,
            local: false,
            config: None,
            connect_timeout: None,
            quiet: false,
            verbose: false,
        }
    }

    fn resolve(args: &StoreArgs, environment: &Environment) -> Result<Settings, ConfigError> {
        find(args, environment)?.ok_or_else(nothing_configured)
    }

    fn refused(args: &StoreArgs, environment: &Environment) -> ConfigError {
        resolve(args, environment).expect_err("no settings")
    }

    #[cfg(all(feature = "mysql", feature = "sqlite"))]
    #[test]
    fn the_first_that_is_given_wins() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("c.toml");
        fs::write(
            &file,
            "url = 'mysql://u@in-file/d'\nconnect-timeout = '2s'\n",
        )
        .expect("a file");
        let mut environment = Environment {
            url: Some("mysql://u@in-env/d".into()),
            config: Some(file.clone().into()),
            ..Environment::default()
        };
        let shown = |args: &StoreArgs, environment: &Environment| {
            let settings = resolve(args, environment).expect("settings");
            format!("{:?} {:?}", settings.endpoint, settings.connect_timeout)
        };
        let url = StoreArgs {
            url: Some("mysql://u@in-args/d".into()),
            connect_timeout: Some(Duration::from_secs(1)),
            ..args()
        };
        assert_eq!(shown(&url, &environment), "mysql at in-args:3306 1s");
        assert_eq!(shown(&args(), &environment), "mysql at in-env:3306 2s");
        environment.url = None;
        assert_eq!(shown(&args(), &environment), "mysql at in-file:3306 2s");
        environment.is_root = true;
        let local = StoreArgs {
            local: true,
            ..args()
        };
        assert!(shown(&local, &environment).contains("/var/lib/dblock/locks.db"));
    }

    #[test]
    fn nothing_configured_says_both_ways() {
        let text = refused(&args(), &Environment::default()).to_string();
        assert!(
            text.contains("--local") && text.contains("DBLOCK_URL"),
            "{text}"
        );
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        let environment = Environment {
            config: Some("/nonexistent/c.toml".into()),
            url: Some("sqlite:/tmp/x".into()),
            ..Environment::default()
        };
        let text = refused(&args(), &environment).to_string();
        assert!(text.contains("/nonexistent/c.toml"), "{text}");
    }

    #[test]
    fn errors_in_files_name_the_line_and_hide_the_secret() {
        let text = "url = 'mysql://h/d'\npassword = 's3cret\n";
        let error = parse(Path::new("c.toml"), text)
            .expect_err("broken")
            .to_string();
        assert!(
            error.starts_with("c.toml, line 2: ") && !error.contains("s3cret"),
            "{error}"
        );
        let error = parse(Path::new("c.toml"), "\n\npasswrd = 's3cret'\n").expect_err("unknown");
        let error = error.to_string();
        assert!(
            error.contains("line 3") && error.contains("passwrd"),
            "{error}"
        );
        assert!(!error.contains("s3cret"), "{error}");
        let error = parse(Path::new("c.toml"), "password = 48151623\n").expect_err("a number");
        let error = error.to_string();
        assert!(
            error.contains("line 1") && !error.contains("48151623"),
            "{error}"
        );
        let error =
            parse(Path::new("c.toml"), "connect-timeout = [48151623]\n").expect_err("a list");
        assert!(!error.to_string().contains("48151623"), "{error}");
    }

    #[test]
    fn a_time_of_nothing_is_refused() {
        for text in ["connect-timeout = 0\n", "connect-timeout = '0s'\n"] {
            let file = parse(Path::new("c.toml"), text).expect("TOML");
            assert!(file.connect_timeout.expect("a time").read().is_err());
        }
        let file = parse(Path::new("c.toml"), "connect-timeout = 5\n").expect("TOML");
        let read = file.connect_timeout.expect("a time").read();
        assert_eq!(read, Ok(Duration::from_secs(5)));
    }

    #[test]
    fn one_line_end_is_not_part_of_a_password() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("p");
        for (bytes, secret) in [
            ("p\n", "p"),
            ("p\r\n", "p"),
            ("p\n\n", "p\n"),
            (" p ", " p "),
        ] {
            fs::write(&file, bytes).expect("a file");
            let read = read_password(&file, "test").expect("a password");
            assert_eq!(read.reveal(), secret);
        }
        fs::write(&file, b"\xff").expect("a file");
        assert!(read_password(&file, "test").is_err());
    }

    #[test]
    fn commands_are_quoted_as_one_would_type_them() {
        let words = ["sh", "-c", "echo it's", ""].map(OsString::from);
        assert_eq!(quote(&words), r"sh -c 'echo it'\''s' ''");
    }
}
