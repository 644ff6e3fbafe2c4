//! `dblock init`: asks the store to create or check its tables.

use anyhow::Error;

use crate::cli::InitArgs;
use crate::clock;
use crate::config;
use crate::exit::Exit;
use crate::output;
use crate::store::{Initialized, Limits, MYSQL_SCHEMA, StoreError};

/// The least rights that an account needs for everything but creating tables.
const GRANTS: &str = "
-- The least rights of the account that dblock logs in with. Replace the names.
-- GRANT SELECT, INSERT, UPDATE, DELETE ON `DATABASE`.dblock_lock TO 'USER'@'HOST';
-- GRANT SELECT, INSERT, UPDATE ON `DATABASE`.dblock_meta TO 'USER'@'HOST';
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
    let give_up = clock::now() + settings.connect_timeout;
    let state = loop {
        match store.init() {
            Err(StoreError::Transient(_)) if clock::now() < give_up => {
                std::thread::park_timeout(std::time::Duration::from_millis(fastrand::u64(10..100)));
            }
            other => break other?,
        }
    };
    console.say(&match state {
        Initialized::Created => "the tables were created",
        Initialized::Unchanged => "the tables are there and right",
    });
    Ok(Exit::SUCCESS)
}
