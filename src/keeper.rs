//! The thread that talks to the store.
//!
//! It carries out one call after another and posts each answer with the
//! moment when the call was sent. It decides nothing: when to renew, when to
//! try again and when all is lost is the state machines' affair, which never
//! wait for this thread.
//!
//! This module must not know processes, signals or exit codes.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::clock::{self, Tick};
use crate::inbox::Postbox;
use crate::lock::{Grant, Holder, Key, Owner, Request, Ttl, Waiter};
use crate::store::{
    Acquired, Canceller, End, Released, Renewed, Revive, Store, StoreError, Waited,
};

/// A call to the store.
#[derive(Clone, Debug)]
pub enum Call {
    /// Try to take the key.
    Acquire(Request),
    /// Look at the key's rows.
    Look(Key),
    /// Extend the lease.
    Renew(Grant, Ttl),
    /// Give the lease back.
    Release(Grant, End),
    /// Wait for the key, up to this time.
    Wait(Waiter, Duration),
    /// Remove what attempts of unknown outcome may have left.
    Forget(Key, Vec<Owner>),
}

/// The answer to a call.
#[derive(Debug)]
pub enum Reply {
    /// To [`Call::Acquire`].
    Acquired(Result<Acquired, StoreError>),
    /// To [`Call::Look`].
    Looked(Result<Vec<Holder>, StoreError>),
    /// To [`Call::Renew`].
    Renewed(Result<Renewed, StoreError>),
    /// To [`Call::Release`].
    Released(Result<Released, StoreError>),
    /// To [`Call::Wait`].
    Waited(Result<Waited, StoreError>),
    /// To [`Call::Forget`].
    Forgot(Result<(), StoreError>),
    /// The thread has ended: after it was dismissed, or by a fault.
    Gone,
}

/// An answer, and when its call was sent. A lease counts from there.
#[derive(Debug)]
pub struct Answer {
    /// The moment before the call was begun.
    pub sent: Tick,
    /// The answer.
    pub reply: Reply,
}

/// The handle of the thread. Dropping it lets the thread end when it has
/// finished the calls that it was given.
#[derive(Debug)]
pub struct Keeper {
    calls: mpsc::Sender<Call>,
    canceller: Option<Box<dyn Canceller>>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no thread to give.
    pub fn start(store: Box<dyn Store>, post: Postbox) -> io::Result<Self> {
        let (calls, receiver) = mpsc::channel();
        let canceller = store.canceller();
        thread::Builder::new()
            .name("keeper".into())
            .spawn(move || work(store, &receiver, post))?;
        Ok(Self { calls, canceller })
    }

    /// Has the call that is under way dropped by the server, on a thread that
    /// lives as long as that takes. If there is no thread to be had, the call
    /// takes its time.
    pub fn cancel(&mut self) {
        if let Some(canceller) = self.canceller.take() {
            let thread = thread::Builder::new().name("canceller".into());
            thread.spawn(move || canceller.cancel()).ok();
        }
    }

    /// Gives the thread a call to carry out. If the thread is gone,
    /// [`Reply::Gone`] has been posted.
    pub fn ask(&self, call: Call) {
        self.calls.send(call).ok();
    }
}

fn work(mut store: Box<dyn Store>, calls: &mpsc::Receiver<Call>, post: Postbox) {
    // Posts that the thread is gone also when it panics.
    let post = Farewell(post);
    while let Ok(call) = calls.recv() {
        let sent = clock::now();
        let reply = match call {
            Call::Acquire(request) => Reply::Acquired(store.acquire(&request)),
            Call::Look(key) => Reply::Looked(store.holders(Some(&key))),
            Call::Renew(grant, ttl) => Reply::Renewed(store.renew(&grant, ttl, Revive::Allowed)),
            Call::Release(grant, end) => Reply::Released(store.release(&grant, end)),
            Call::Wait(waiter, limit) => Reply::Waited(store.wait(&waiter, limit)),
            Call::Forget(key, owners) => Reply::Forgot(store.forget(&key, &owners)),
        };
        post.0.send(Answer { sent, reply });
    }
    // Says goodbye to the server before anybody is told.
    drop(store);
}

struct Farewell(Postbox);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.send(Answer {
            sent: clock::now(),
            reply: Reply::Gone,
        });
    }
}
