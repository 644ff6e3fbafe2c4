//! The table that comes out in the end.

use std::fs;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

/// How far a goal may be missed before `--check` fails: a machine that does
/// other things as well shifts even a ratio by that much.
const TOLERANCE: f64 = 1.2;

/// What a number has to be.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// At most so many times the other number.
    Times(f64),
    /// At most so many milliseconds.
    Millis(f64),
    /// At most so many mebibytes.
    Mebibytes(f64),
    /// At most so many a second.
    PerSecond(f64),
    /// No goal is stated: for the record.
    None,
}

impl Goal {
    fn limit(self) -> Option<f64> {
        match self {
            Self::Times(limit)
            | Self::Millis(limit)
            | Self::Mebibytes(limit)
            | Self::PerSecond(limit) => Some(limit),
            Self::None => None,
        }
    }

    fn shown(self) -> String {
        match self {
            Self::Times(limit) => format!("at most {limit} x"),
            Self::Millis(limit) => format!("at most {limit} ms"),
            Self::Mebibytes(limit) => format!("at most {limit} MiB"),
            Self::PerSecond(limit) => format!("at most {limit} /s"),
            Self::None => "-".to_owned(),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Times(_) | Self::None => " x",
            Self::Millis(_) => " ms",
            Self::Mebibytes(_) => " MiB",
            Self::PerSecond(_) => " /s",
        }
    }
}

/// The rows so far.
pub(crate) struct Report {
    rows: Vec<[String; 5]>,
    missed: bool,
    load_before: String,
}

impl Report {
    pub(crate) fn begin() -> Self {
        Self {
            rows: Vec::new(),
            missed: false,
            load_before: load_average(),
        }
    }

    /// Adds a row: what was measured, the facts behind it, and the value that
    /// the goal is about.
    pub(crate) fn row(&mut self, what: &str, goal: Goal, facts: &str, value: f64) {
        let verdict = match goal.limit() {
            None => "-",
            Some(limit) if value <= limit => "ok",
            Some(_) => "MISSED",
        };
        self.missed |= goal.limit().is_some_and(|limit| value > limit * TOLERANCE);
        self.rows.push([
            what.to_owned(),
            goal.shown(),
            facts.to_owned(),
            format!("{value:.2}{}", goal.unit()),
            verdict.to_owned(),
        ]);
    }

    /// Adds a row for what could not be measured here.
    pub(crate) fn skip(&mut self, what: &str, goal: Goal, why: &str) {
        eprintln!("SKIPPED: {what}: {why}");
        self.rows.push([
            what.to_owned(),
            goal.shown(),
            why.to_owned(),
            "-".to_owned(),
            "SKIPPED".to_owned(),
        ]);
    }

    /// Tells whether a goal is missed by more than the tolerance.
    pub(crate) fn is_missed(&self) -> bool {
        self.missed
    }

    pub(crate) fn print(&self) {
        let mut table = Table::new();
        table
            .load_style(ASCII_MARKDOWN)
            .set_header(["what", "goal", "measured", "value", "verdict"])
            .add_rows(&self.rows);
        if let Some(column) = table.column_mut(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        println!("{table}");
        println!(
            "\nload average before: {}; after: {}",
            self.load_before,
            load_average()
        );
        println!("durations: median (lower to upper quartile)");
    }
}

/// Returns the load averages of 1, 5 and 15 minutes.
fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let three: Vec<_> = text.split(' ').take(3).collect();
    three.join(" ")
}
