//! Works only while it holds a lock: started on several hosts, or several
//! times on one, it counts on one of them, and another takes over when that
//! one ends, is killed or loses its network.
//!
//! ```console
//! $ cargo run --example leader -- sqlite:/tmp/locks.db
//! ```

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that uses the library is no part of dblock"
)]

use std::error::Error;
use std::thread;
use std::time::Duration;

use dblock::client::{Attempt, Client, Ended, Lease};

fn main() -> Result<(), Box<dyn Error>> {
    let locks = match std::env::args().nth(1) {
        Some(url) => Client::open(&url)?,
        None => Client::configured()?,
    };
    let lock = locks
        .lock("example-leader")?
        .ttl(Duration::from_secs(10))
        .wait_for(Duration::from_secs(3600));
    loop {
        match lock.acquire()? {
            Attempt::Held(lease) => lead(lease)?,
            Attempt::Busy(_) | Attempt::Cancelled => println!("still waiting"),
        }
    }
}

/// Works in steps that are much shorter than the time to stop within, until
/// the work is done or the lease is lost.
fn lead(lease: Lease) -> Result<(), Box<dyn Error>> {
    println!("leading with token {}", lease.token());
    for step in 1..=100 {
        if !lease.is_held() {
            break;
        }
        println!("step {step}");
        thread::sleep(Duration::from_millis(500));
    }
    // Only now, when nothing is being worked on any more.
    match lease.release()? {
        Ended::Released => println!("done"),
        Ended::Lost(loss) => println!("stopped: {loss}"),
    }
    Ok(())
}
