//! `dblock init`: asks the store to create or check its tables.

use anyhow::Error;

use crate::cli::InitArgs;
use crate::config;
use crate::exit::Exit;
use crate::output;
use crate::store::{Initialized, Limits, MYSQL_SCHEMA};

/// The least rights that an account needs for everything but creating tables.
const GRANTS: &str = "
-- The least rights of the account that dblock logs in with. Replace the names.
-- GRANT SELECT, INSERT, UPDATE, DELETE ON `DATABASE`.dblock_lock TO 'USER'@'HOST';
-- GRANT SELECT, INSERT, UPDATE, DELETE ON `DATABASE`.dblock_waiter TO 'USER'@'HOST';
-- GRANT SELECT ON `DATABASE`.dblock_meta TO 'USER'@'HOST';
";

pub(super) fn init(args: &InitArgs) -> Result<Exit, Error> {
    if args.print_sql {
        output::print(&format!("{MYSQL_SCHEMA}{GRANTS}"))?;
        return Ok(Exit::SUCCESS);
    }
    let console = super::console(&args.store);
    let settings = config::settings(&args.store)?;
    let mut store = settings
        .endpoint
        .open(Limits::for_command(settings.connect_timeout));
    // Many may do this at once, and the server may find that they block each
    // other; repeating it is harmless.
    let state = super::patiently(settings.connect_timeout, |_| store.init())?;
    console.say(&match state {
        Initialized::Created => "the tables were created",
        Initialized::Unchanged => "the tables are there and right",
    });
    Ok(Exit::SUCCESS)
}
