//! A TCP proxy in front of a server: it counts, holds and cuts.

use std::io::{self, Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A proxy on a loopback port of its own. It forwards until it is told
/// otherwise, and is gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: u16,
    state: Mutex<State>,
    changed: Condvar,
    connections: AtomicUsize,
    turns: AtomicUsize,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// Both ends of every connection, to be cut.
    open: Vec<TcpStream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Bytes pass.
    Pass,
    /// Connections are accepted and stay open, but no byte passes, in either
    /// direction: what a network does that loses every packet.
    Hold,
    /// Connections are closed as soon as they are made.
    Refuse,
    /// The proxy is being dropped.
    Gone,
}

impl Proxy {
    /// Starts a proxy in front of a port on the loopback address.
    pub(crate) fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let shared = Arc::new(Shared {
            target,
            state: Mutex::new(State {
                mode: Mode::Pass,
                open: Vec::new(),
            }),
            changed: Condvar::new(),
            connections: AtomicUsize::new(0),
            turns: AtomicUsize::new(0),
        });
        let proxy = Arc::clone(&shared);
        spawn(move || {
            for stream in listener.incoming() {
                if proxy.lock().mode == Mode::Gone {
                    return;
                }
                // A client that gave up already is none of the proxy's business.
                stream.and_then(|client| proxy.connect(client)).ok();
            }
        });
        Self { port, shared }
    }

    /// Returns the proxy's port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns how many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Returns how often the server has begun to speak: after a connection was
    /// made, or after the client has spoken. Each is one round trip.
    pub(crate) fn turns(&self) -> usize {
        self.shared.turns.load(Ordering::SeqCst)
    }

    /// Lets bytes pass again, those that were held first.
    pub(crate) fn pass(&self) {
        self.shared.switch(Mode::Pass);
    }

    /// Holds all bytes from now on, and accepts connections all the same.
    pub(crate) fn hold(&self) {
        self.shared.switch(Mode::Hold);
    }

    /// Cuts all connections, and each new one at once.
    pub(crate) fn refuse(&self) {
        self.shared.switch(Mode::Refuse);
        self.cut();
    }

    /// Cuts the connections that there are; new ones work.
    pub(crate) fn cut(&self) {
        self.shared.cut();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.switch(Mode::Gone);
        self.shared.cut();
        // Wakes the thread that accepts, which closes the port.
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switch(&self, mode: Mode) {
        self.lock().mode = mode;
        self.changed.notify_all();
    }

    fn cut(&self) {
        for stream in self.lock().open.drain(..) {
            // It may be closed already.
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    /// Waits while bytes are held; tells whether they may pass then.
    fn may_pass(&self) -> bool {
        let state = self
            .changed
            .wait_while(self.lock(), |state| state.mode == Mode::Hold);
        state.unwrap_or_else(PoisonError::into_inner).mode == Mode::Pass
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let mut state = self.lock();
        if state.mode == Mode::Refuse {
            return client.shutdown(Shutdown::Both);
        }
        let server = TcpStream::connect(("127.0.0.1", self.target))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            state.open.push(stream.try_clone()?);
        }
        drop(state);
        let server_may_speak = Arc::new(AtomicBool::new(true));
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        let (shared, flag) = (Arc::clone(self), Arc::clone(&server_may_speak));
        spawn(move || {
            shared.pump(from, to, || flag.store(true, Ordering::SeqCst));
        });
        let shared = Arc::clone(self);
        spawn(move || {
            shared.pump(server, client, || {
                if server_may_speak.swap(false, Ordering::SeqCst) {
                    shared.turns.fetch_add(1, Ordering::SeqCst);
                }
            });
        });
        Ok(())
    }

    /// Forwards one direction until its end.
    fn pump(&self, mut from: TcpStream, mut to: TcpStream, count: impl Fn()) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            count();
            if !self.may_pass() || to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        // The end of one direction passes like a byte; the other goes on.
        self.may_pass();
        to.shutdown(Shutdown::Write).ok();
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    thread::Builder::new()
        .spawn(work)
        .expect("a thread for the proxy");
}
