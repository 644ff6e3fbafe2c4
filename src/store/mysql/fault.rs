//! What an error of the server or of the driver means.

use std::error::Error;
use std::io;

use mysql::DriverError;

use super::Server;
use crate::store::StoreError;

/// What a server's error code says about the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Not carried out; the same may work in a moment.
    Again,
    /// Nobody knows whether it was carried out.
    Unknown,
    /// The node may not be written to.
    ReadOnly,
    /// The server runs with an option that forbids it; which one, the text says.
    Option,
    /// The account or the server's configuration does not allow it.
    Denied,
    /// The tables are not there or not right.
    Schema,
}

/// The codes with a meaning of their own; all others are [`Meaning::Unknown`],
/// among them those of a server that shuts down (1053), a killed statement
/// (1317, 1927, 1969, 3024), a commit that failed (1180), a cluster's node that
/// is not ready (1047), a full disk (1021, 1114) and a proxy's own (9001).
/// Names are those of the MySQL and MariaDB error references.
const CODES: &[(u16, Meaning)] = &[
    (1020, Meaning::Again), // ER_CHECKREAD: record has changed (snapshot isolation)
    (1040, Meaning::Again), // ER_CON_COUNT_ERROR
    (1044, Meaning::Denied), // ER_DBACCESS_DENIED_ERROR
    (1045, Meaning::Denied), // ER_ACCESS_DENIED_ERROR
    (1046, Meaning::Denied), // ER_NO_DB_ERROR
    (1049, Meaning::Denied), // ER_BAD_DB_ERROR
    (1054, Meaning::Schema), // ER_BAD_FIELD_ERROR
    (1062, Meaning::Schema), // ER_DUP_ENTRY: only a foreign unique key can say this
    (1064, Meaning::Schema), // ER_PARSE_ERROR: a server too old for the statements
    (1129, Meaning::Denied), // ER_HOST_IS_BLOCKED
    (1130, Meaning::Denied), // ER_HOST_NOT_PRIVILEGED
    (1142, Meaning::Denied), // ER_TABLEACCESS_DENIED_ERROR
    (1143, Meaning::Denied), // ER_COLUMNACCESS_DENIED_ERROR
    (1146, Meaning::Schema), // ER_NO_SUCH_TABLE
    (1203, Meaning::Again), // ER_TOO_MANY_USER_CONNECTIONS
    (1205, Meaning::Again), // ER_LOCK_WAIT_TIMEOUT
    (1213, Meaning::Again), // ER_LOCK_DEADLOCK
    (1226, Meaning::Again), // ER_USER_LIMIT_REACHED
    (1227, Meaning::Denied), // ER_SPECIFIC_ACCESS_DENIED_ERROR
    (1290, Meaning::Option), // ER_OPTION_PREVENTS_STATEMENT: read_only, secure_timestamp
    (1345, Meaning::Schema), // ER_VIEW_NO_EXPLAIN: a view in place of the table
    (1364, Meaning::Schema), // ER_NO_DEFAULT_FOR_FIELD
    (1366, Meaning::Schema), // ER_TRUNCATED_WRONG_VALUE_FOR_FIELD
    (1370, Meaning::Denied), // ER_PROCACCESS_DENIED_ERROR
    (1406, Meaning::Schema), // ER_DATA_TOO_LONG
    (1467, Meaning::Again), // ER_AUTOINC_READ_FAILED
    (1665, Meaning::Denied), // ER_BINLOG_STMT_MODE_AND_ROW_ENGINE: STATEMENT and READ COMMITTED
    (1792, Meaning::ReadOnly), // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
    (1836, Meaning::ReadOnly), // ER_READ_ONLY_MODE
    (3058, Meaning::Again), // ER_USER_LOCK_DEADLOCK
    (3098, Meaning::Schema), // ER_BEFORE_DML_VALIDATION_ERROR: no table for Group Replication
    (3101, Meaning::Again), // ER_TRANSACTION_ROLLBACK_DURING_COMMIT
    (3118, Meaning::Denied), // ER_ACCOUNT_HAS_BEEN_LOCKED
    (3159, Meaning::Denied), // ER_SECURE_TRANSPORT_REQUIRED
    (3572, Meaning::Again), // ER_LOCK_NOWAIT
];

fn meaning(code: u16, message: &str) -> Meaning {
    let known = CODES.iter().find(|(known, _)| *known == code);
    match known.map_or(Meaning::Unknown, |(_, meaning)| *meaning) {
        // Whatever language the server speaks, it names its option.
        Meaning::Option if message.contains("read-only") || message.contains("read_only") => {
            Meaning::ReadOnly
        }
        Meaning::Option => Meaning::Denied,
        other => other,
    }
}

/// What is known after an error.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) error: StoreError,
    /// Whether the connection is still in step with the server. After anything
    /// but an error that the server itself sent, the next answer on it may be
    /// the one to an earlier statement.
    pub(super) in_step: bool,
    /// Whether another host of the server may do better: this one answers, and
    /// does not do its work, or it has fallen silent.
    pub(super) other_host: bool,
}

impl Fault {
    fn lost(error: StoreError) -> Self {
        Self {
            error,
            in_step: false,
            other_host: false,
        }
    }

    fn interrupted(server: &Server, cause: &io::Error) -> Self {
        let silent = is_timeout(cause);
        let text = if silent {
            format!("no answer from {server} in time")
        } else {
            format!("lost the connection to {server}: {cause}")
        };
        Self {
            other_host: silent,
            ..Self::lost(StoreError::Unavailable(text))
        }
    }
}

/// Tells whether the server forbids its clients to set their own clock.
pub(super) fn fixes_clock(error: &mysql::Error) -> bool {
    matches!(error, mysql::Error::MySqlError(sent)
        if sent.code == 1290 && sent.message.contains("secure-timestamp"))
}

/// Returns what `error` means.
pub(super) fn classify(error: &mysql::Error, server: &Server) -> Fault {
    match error {
        mysql::Error::MySqlError(sent) => {
            let meaning = meaning(sent.code, &sent.message);
            Fault {
                error: sent_error(sent, meaning, server),
                in_step: !matches!(meaning, Meaning::Unknown | Meaning::ReadOnly),
                other_host: matches!(meaning, Meaning::Unknown | Meaning::ReadOnly),
            }
        }
        mysql::Error::DriverError(
            cause @ (DriverError::TlsNotSupported
            | DriverError::UnknownAuthPlugin(_)
            | DriverError::OldMysqlPasswordDisabled
            | DriverError::CleartextPluginDisabled),
        ) => Fault::lost(StoreError::Denied(format!(
            "cannot log in to {server}: {cause}"
        ))),
        mysql::Error::DriverError(DriverError::ConnectTimeout) => Fault::lost(
            StoreError::Unavailable(format!("cannot reach {server}: no answer in time")),
        ),
        mysql::Error::DriverError(DriverError::CouldNotConnect(Some((_, why, _)))) => Fault::lost(
            StoreError::Unavailable(format!("cannot reach {server}: {why}")),
        ),
        mysql::Error::IoError(cause) => Fault::interrupted(server, cause),
        mysql::Error::CodecError(codec) => {
            match codec.source().and_then(|cause| cause.downcast_ref()) {
                Some(cause) => Fault::interrupted(server, cause),
                None => Fault::lost(StoreError::Unavailable(format!(
                    "lost the connection to {server}: {codec}"
                ))),
            }
        }
        other => Fault::lost(StoreError::Unavailable(format!(
            "lost the connection to {server}: {other}"
        ))),
    }
}

/// Returns the error for what the server itself said.
fn sent_error(sent: &mysql::MySqlError, meaning: Meaning, server: &Server) -> StoreError {
    let (said, code) = (&sent.message, sent.code);
    match meaning {
        Meaning::Again => {
            StoreError::Transient(format!("{server} cannot do it just now: {said} ({code})"))
        }
        Meaning::Unknown => StoreError::Unavailable(format!("{server} failed: {said} ({code})")),
        Meaning::ReadOnly => {
            StoreError::ReadOnly(format!("{server} is read-only: {said} ({code})"))
        }
        Meaning::Denied | Meaning::Option if code == 1045 && server.password.is_none() => {
            StoreError::Denied(format!(
                "{server} refuses: {said} ({code}); give a password with DBLOCK_PASSWORD or \
                 DBLOCK_PASSWORD_FILE"
            ))
        }
        Meaning::Denied | Meaning::Option => {
            StoreError::Denied(format!("{server} refuses: {said} ({code})"))
        }
        Meaning::Schema if code == 1146 => StoreError::Schema(format!(
            "the tables are missing in {server}: {said} ({code}); create them with 'dblock init'"
        )),
        Meaning::Schema => StoreError::Schema(format!(
            "the tables in {server} are not as they should be: {said} ({code})"
        )),
    }
}

/// Returns what an error means that came up while connecting: whatever it is,
/// no statement was sent.
pub(super) fn at_login(error: &mysql::Error, server: &Server) -> StoreError {
    match classify(error, server).error {
        StoreError::Unavailable(said) => StoreError::Unreachable(said),
        other => other,
    }
}

/// A socket's read that runs out of time answers EAGAIN (socket(7),
/// SO_RCVTIMEO).
fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_stands_once_and_in_order() {
        assert!(CODES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn what_nobody_knows_is_unknown() {
        for code in [
            1021, 1030, 1047, 1053, 1114, 1180, 1317, 1927, 1969, 3024, 9001,
        ] {
            assert_eq!(meaning(code, ""), Meaning::Unknown, "{code}");
        }
        for code in [2006, 2013, 4031, 1158, 1159, 1160, 1161, 65535] {
            assert_eq!(meaning(code, ""), Meaning::Unknown, "{code}");
        }
    }

    #[test]
    fn each_known_code_has_its_class() {
        for code in [1020, 1040, 1203, 1205, 1213, 1226, 1467, 3058, 3101, 3572] {
            assert_eq!(meaning(code, ""), Meaning::Again, "{code}");
        }
        for code in [1792, 1836] {
            assert_eq!(meaning(code, ""), Meaning::ReadOnly, "{code}");
        }
        for code in [
            1044, 1045, 1049, 1129, 1130, 1142, 1143, 1227, 1370, 1665, 3118, 3159,
        ] {
            assert_eq!(meaning(code, ""), Meaning::Denied, "{code}");
        }
        for code in [1054, 1062, 1064, 1146, 1364, 1366, 1406, 3098] {
            assert_eq!(meaning(code, ""), Meaning::Schema, "{code}");
        }
    }

    #[test]
    fn an_option_that_forbids_is_not_always_read_only() {
        let said = |option: &str| {
            let text = format!("The server is running with the --{option} option so it cannot");
            meaning(1290, &text)
        };
        assert_eq!(said("read-only"), Meaning::ReadOnly);
        assert_eq!(said("super-read-only"), Meaning::ReadOnly);
        assert_eq!(said("innodb_read_only"), Meaning::ReadOnly);
        assert_eq!(said("secure-timestamp"), Meaning::Denied);
        assert_eq!(said("skip-grant-tables"), Meaning::Denied);
    }
}
