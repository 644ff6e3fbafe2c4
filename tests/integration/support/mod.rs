//! What the tests stand on: servers, proxies that break, dblock itself, and
//! waiting with a limit.

pub(crate) mod database;
pub(crate) mod dblock;
pub(crate) mod faketime;
pub(crate) mod family;
pub(crate) mod frozen;
pub(crate) mod janitor;
pub(crate) mod jobs;
pub(crate) mod middleman;
pub(crate) mod outcome;
pub(crate) mod place;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod pty;
pub(crate) mod running;
pub(crate) mod server;
pub(crate) mod users;
pub(crate) mod wait;
pub(crate) mod wire;

/// The one password of all tests. No output may hold it.
pub(crate) const PASSWORD: &str = "s3cr3t-pw";

/// The variable through which dblock gets it.
pub(crate) const PASSWORD_VARIABLE: &str = "DBLOCK_PASSWORD";

/// Makes a test on each store out of each function that takes a place.
macro_rules! on_every_store {
    ($($test:ident),+ $(,)?) => {
        mod embedded {
            use crate::support::place::Place;
            $(#[test] fn $test() { super::$test(&Place::embedded()); })+
        }
        mod mariadb {
            use crate::support::place::Place;
            $(#[test] fn $test() { super::$test(&Place::mariadb()); })+
        }
    };
}
pub(crate) use on_every_store;
