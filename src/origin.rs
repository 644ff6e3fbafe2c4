//! What this process was given at its start, noted before Rust's runtime
//! changes it.
//!
//! The runtime ignores SIGPIPE and opens `/dev/null` on each of the standard
//! descriptors that is closed. Both would reach the job, which is to find
//! everything as it would without dblock; and a command whose output is its
//! purpose must know that nobody can read it. So a function in `.init_array`,
//! which the loader calls before `main`, takes note.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use nix::libc;

static CLOSED: AtomicU8 = AtomicU8::new(0);
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
#[expect(unsafe_code, reason = "there is no safe way to run before the runtime")]
// SAFETY: the section holds pointers to functions of this type (System V ABI,
// "Initialization and Termination Functions"); the function only makes system
// calls and stores to atomics, and needs nothing that is set up later.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

#[expect(unsafe_code, reason = "fcntl and sigaction of a foreign state")]
extern "C" fn note() {
    // SAFETY: F_GETFD takes no argument and changes nothing; sigaction with a
    // null new action only writes to `old`, which is a valid zeroed value.
    unsafe {
        for descriptor in 0..3u8 {
            if libc::fcntl(i32::from(descriptor), libc::F_GETFD) == -1 {
                CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
            }
        }
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut old) == 0 {
            PIPE_IGNORED.store(old.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
        }
    }
}

/// Tells whether a standard descriptor (0, 1 or 2) was closed at the start.
#[must_use]
pub fn was_closed(descriptor: u8) -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << descriptor) != 0
}

/// Tells whether SIGPIPE was ignored at the start.
#[must_use]
pub fn pipe_was_ignored() -> bool {
    PIPE_IGNORED.load(Ordering::Relaxed)
}
