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
    /// The account may not.
    Denied,
    /// The tables are not there or not right.
    Schema,
}

/// The codes with a meaning of their own; all others are [`Meaning::Unknown`].
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
    (1290, Meaning::ReadOnly), // ER_OPTION_PREVENTS_STATEMENT: read_only
    (1345, Meaning::Schema), // ER_VIEW_NO_EXPLAIN: a view in place of the table
    (1364, Meaning::Schema), // ER_NO_DEFAULT_FOR_FIELD
    (1366, Meaning::Schema), // ER_TRUNCATED_WRONG_VALUE_FOR_FIELD
    (1370, Meaning::Denied), // ER_PROCACCESS_DENIED_ERROR
    (1406, Meaning::Schema), // ER_DATA_TOO_LONG
    (1467, Meaning::Again), // ER_AUTOINC_READ_FAILED
    (1792, Meaning::ReadOnly), // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
    (1836, Meaning::ReadOnly), // ER_READ_ONLY_MODE
    (3058, Meaning::Again), // ER_USER_LOCK_DEADLOCK
    (3101, Meaning::Again), // ER_TRANSACTION_ROLLBACK_DURING_COMMIT
    (3118, Meaning::Denied), // ER_ACCOUNT_HAS_BEEN_LOCKED
    (3159, Meaning::Denied), // ER_SECURE_TRANSPORT_REQUIRED
    (3572, Meaning::Again), // ER_LOCK_NOWAIT
];

fn meaning(code: u16) -> Meaning {
    CODES
        .iter()
        .find(|(known, _)| *known == code)
        .map_or(Meaning::Unknown, |(_, meaning)| *meaning)
}

/// Returns what `error` means, and whether the connection is still in step
/// with the server. After anything but an error that the server itself sent,
/// the next answer on the connection may be the one to an earlier statement.
pub(super) fn classify(error: &mysql::Error, server: &Server) -> (StoreError, bool) {
    match error {
        mysql::Error::MySqlError(sent) => {
            let said = &sent.message;
            let code = sent.code;
            let class = match meaning(code) {
                Meaning::Again => StoreError::Transient(format!(
                    "{server} cannot do it just now: {said} ({code})"
                )),
                Meaning::Unknown => {
                    StoreError::Unavailable(format!("{server} failed: {said} ({code})"))
                }
                Meaning::ReadOnly => {
                    StoreError::ReadOnly(format!("{server} is read-only: {said} ({code})"))
                }
                Meaning::Denied if code == 1045 && server.password.is_none() => {
                    StoreError::Denied(format!(
                        "{server} refuses: {said} ({code}); give a password with \
                         DBLOCK_PASSWORD or DBLOCK_PASSWORD_FILE"
                    ))
                }
                Meaning::Denied => StoreError::Denied(format!("{server} refuses: {said} ({code})")),
                Meaning::Schema if code == 1146 => StoreError::Schema(format!(
                    "the tables are missing in {server}: {said} ({code}); create them with 'dblock init'"
                )),
                Meaning::Schema => StoreError::Schema(format!(
                    "the tables in {server} are not as they should be: {said} ({code})"
                )),
            };
            let in_step = !matches!(class, StoreError::Unavailable(_) | StoreError::ReadOnly(_));
            (class, in_step)
        }
        mysql::Error::DriverError(
            cause @ (DriverError::TlsNotSupported
            | DriverError::UnknownAuthPlugin(_)
            | DriverError::OldMysqlPasswordDisabled
            | DriverError::CleartextPluginDisabled),
        ) => (
            StoreError::Denied(format!("cannot log in to {server}: {cause}")),
            false,
        ),
        mysql::Error::DriverError(DriverError::ConnectTimeout) => (
            StoreError::Unavailable(format!("cannot reach {server}: no answer in time")),
            false,
        ),
        mysql::Error::DriverError(DriverError::CouldNotConnect(Some((_, why, _)))) => (
            StoreError::Unavailable(format!("cannot reach {server}: {why}")),
            false,
        ),
        mysql::Error::IoError(cause) => (interrupted(server, cause), false),
        mysql::Error::CodecError(codec) => (
            match codec.source().and_then(|cause| cause.downcast_ref()) {
                Some(cause) => interrupted(server, cause),
                None => {
                    StoreError::Unavailable(format!("lost the connection to {server}: {codec}"))
                }
            },
            false,
        ),
        other => (
            StoreError::Unavailable(format!("lost the connection to {server}: {other}")),
            false,
        ),
    }
}

/// Returns what an error means that came up while connecting: whatever it is,
/// no statement was sent.
pub(super) fn at_login(error: &mysql::Error, server: &Server) -> StoreError {
    match classify(error, server).0 {
        StoreError::Unavailable(said) => StoreError::Unreachable(said),
        other => other,
    }
}

fn interrupted(server: &Server, cause: &io::Error) -> StoreError {
    StoreError::Unavailable(if is_timeout(cause) {
        format!("no answer from {server} in time")
    } else {
        format!("lost the connection to {server}: {cause}")
    })
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
        assert_eq!(meaning(1180), Meaning::Unknown);
        assert_eq!(meaning(1053), Meaning::Unknown);
        assert_eq!(meaning(1213), Meaning::Again);
    }
}
