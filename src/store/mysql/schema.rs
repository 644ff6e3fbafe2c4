//! Whether the tables can exclude.
//!
//! A table that lacks its primary key, or that folds case, grants a lock to
//! two holders without any error. So the tables are judged before the first
//! job may start, in the packet that is sent anyway.

use mysql::Row;

use super::link::Answer;
use crate::store::StoreError;

/// The schema that this version reads and writes.
const VERSION: u32 = 1;

/// What a column must be.
struct Column {
    name: &'static str,
    /// `data_type` of the information schema.
    kind: &'static str,
    /// Fewest characters of a text column.
    width: u64,
    collation: Option<&'static str>,
    unsigned: bool,
    nullable: bool,
}

const fn number(name: &'static str, kind: &'static str, unsigned: bool) -> Column {
    Column {
        name,
        kind,
        width: 0,
        collation: None,
        unsigned,
        nullable: false,
    }
}

const fn text(
    name: &'static str,
    kind: &'static str,
    width: u64,
    collation: &'static str,
) -> Column {
    Column {
        name,
        kind,
        width,
        collation: Some(collation),
        unsigned: false,
        nullable: false,
    }
}

const COLUMNS: &[Column] = &[
    text("lock_key", "varchar", 255, "utf8mb4_bin"),
    number("slot", "smallint", true),
    text("owner_id", "char", 36, "ascii_bin"),
    number("token", "bigint", true),
    number("expire_at", "bigint", false),
    number("acquired_at", "datetime", false),
    number("renewals", "int", true),
    number("ttl_ms", "bigint", true),
    number("slots", "smallint", true),
    text("kind", "varchar", 16, "ascii_bin"),
    text("host", "varchar", 255, "utf8mb4_bin"),
    number("pid", "int", true),
    text("user_name", "varchar", 255, "utf8mb4_bin"),
    text("command", "varchar", 255, "utf8mb4_bin"),
    Column {
        nullable: true,
        ..text("note", "varchar", 255, "utf8mb4_bin")
    },
    text("state", "varchar", 16, "ascii_bin"),
    number("delay_ms", "bigint", false),
    number("keep_until", "bigint", false),
    number("done_until", "bigint", false),
];

/// Judges the answers to [`super::sql::describe_tables`].
pub(super) fn judge(answers: &[Answer]) -> Result<(), StoreError> {
    let [version, engine, columns, indexes] = answers else {
        return Err(StoreError::Unavailable(
            "the server did not describe the tables".to_owned(),
        ));
    };
    let fault = version_fault(&version.rows)
        .or_else(|| engine_fault(&engine.rows))
        .or_else(|| COLUMNS.iter().find_map(|c| column_fault(c, &columns.rows)))
        .or_else(|| index_fault(&indexes.rows));
    match fault {
        None => Ok(()),
        Some(fault) => Err(StoreError::Schema(format!(
            "{fault}; compare it with 'dblock init --print-sql'"
        ))),
    }
}

fn version_fault(rows: &[Row]) -> Option<String> {
    let found = rows.first().map(|row| field(row, 0)).unwrap_or_default();
    match found.parse::<u32>() {
        Ok(VERSION) => None,
        Ok(newer) if newer > VERSION => Some(format!(
            "the tables are of schema version {newer}, and this dblock knows versions up to {VERSION}: \
             install a newer dblock"
        )),
        Ok(_) | Err(_) => Some(
            "the table dblock_meta holds no schema version that this dblock knows: run 'dblock init'"
                .to_owned(),
        ),
    }
}

fn engine_fault(rows: &[Row]) -> Option<String> {
    let engine = rows.first().map(|row| field(row, 0)).unwrap_or_default();
    (!engine.eq_ignore_ascii_case("InnoDB")).then(|| {
        format!("the table dblock_lock uses the engine '{engine}', and only InnoDB can exclude")
    })
}

fn column_fault(want: &Column, rows: &[Row]) -> Option<String> {
    let name = want.name;
    let Some(row) = rows
        .iter()
        .find(|row| field(row, 0).eq_ignore_ascii_case(name))
    else {
        return Some(format!("the table dblock_lock has no column {name}"));
    };
    let shown = field(row, 2);
    let of = format!("the column dblock_lock.{name}");
    if !field(row, 1).eq_ignore_ascii_case(want.kind)
        || shown.to_ascii_lowercase().contains("unsigned") != want.unsigned
    {
        let unsigned = if want.unsigned { " unsigned" } else { "" };
        return Some(format!(
            "{of} is '{shown}' and must be {}{unsigned}",
            want.kind
        ));
    }
    if want.width > 0
        && field(row, 3)
            .parse()
            .is_ok_and(|width: u64| width < want.width)
    {
        return Some(format!(
            "{of} is '{shown}' and must hold {} characters",
            want.width
        ));
    }
    if let Some(collation) = want.collation
        && field(row, 4) != collation
    {
        return Some(format!(
            "{of} has the collation '{}' and must have {collation}",
            field(row, 4)
        ));
    }
    if (field(row, 5) == "YES") != want.nullable {
        let verb = if want.nullable {
            "must allow"
        } else {
            "must not allow"
        };
        return Some(format!("{of} {verb} NULL"));
    }
    if name == "token"
        && !field(row, 6)
            .to_ascii_lowercase()
            .contains("auto_increment")
    {
        return Some(format!("{of} must be AUTO_INCREMENT"));
    }
    None
}

/// The primary key must be exactly (lock_key, slot), and there must be no
/// other unique key: with two, a takeover could hit another lock's row.
fn index_fault(rows: &[Row]) -> Option<String> {
    let is_primary = |row: &&Row| field(row, 0) == "PRIMARY";
    let primary: Vec<_> = rows
        .iter()
        .filter(is_primary)
        .map(|row| (field(row, 2).to_ascii_lowercase(), field(row, 3)))
        .collect();
    let wanted = ["lock_key", "slot"].map(|name| (name.to_owned(), String::new()));
    if primary != wanted {
        return Some(
            "the primary key of the table dblock_lock must be (lock_key, slot): \
             without it the table cannot exclude"
                .to_owned(),
        );
    }
    rows.iter()
        .find(|row| !is_primary(row) && field(row, 1) == "0")
        .map(|row| {
            format!(
                "the table dblock_lock has the unique key '{}', and must have none besides the primary key",
                field(row, 0)
            )
        })
}

/// Returns a column's text, empty for NULL.
fn field(row: &Row, column: usize) -> String {
    match row.get_opt::<Option<Vec<u8>>, _>(column) {
        Some(Ok(Some(bytes))) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
}
