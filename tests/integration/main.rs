//! Tests of dblock from the outside, and of its stores, in one binary.
//!
//! `tests/run` installs what they need and runs them. They start a MariaDB of
//! their own and leave nothing behind, however they end.

// Without both stores there is nothing to compare; the features alone are
// covered by the unit tests.
#![cfg(all(feature = "mysql", feature = "sqlite"))]
#![expect(
    clippy::disallowed_methods,
    reason = "tests stand outside of the program whose modules the list keeps apart"
)]
#![expect(
    clippy::expect_used,
    reason = "what must not fail in a test fails the test"
)]

mod support;

mod adverse;
mod check;
mod clocks;
mod endings;
mod exit_codes;
mod failover;
mod faults;
mod fencing;
mod generated;
mod grant;
mod guard;
mod library;
mod limits;
mod loss;
mod nesting;
mod run;
mod sessions;
mod settings;
mod signals;
mod store_contract;
mod storm;
mod terminal;
mod tree;
mod unkillable;
mod waiting;
mod words;
