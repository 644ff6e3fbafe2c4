//! A proxy that understands the MySQL protocol, so that a test can say what
//! happens to a single command on a bad day.
//!
//! Each command is read as a whole, its reply too, and in between acts what
//! the test has ordered with [`Middleman::order`]. Whatever a server could say
//! can also be said without asking one.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use dblock::clock::{self, Tick};
use nix::libc;
use nix::sys::socket::{self, Backlog, sockopt};

use super::wait;
use super::wire::{self, Packet, ServerError};

/// A proxy on a loopback port of its own, gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Middleman {
    shared: Arc<Shared>,
}

/// What stands behind the proxy.
#[derive(Clone, Debug)]
pub(crate) enum Behind {
    /// The server on this port. Logins pass.
    Server(u16),
    /// The same, but each login also asks to count rows that were found
    /// instead of rows that were changed, as some proxies do.
    FoundRows(u16),
    /// The same, but each session begins with this statement, as with the
    /// server's `init_connect`.
    Prepared(u16, &'static str),
    /// A pool: the proxy accepts any login itself, and sends each command over
    /// a new connection, which it makes with an account without a password.
    Pool(Backend),
    /// A splitter: what begins with SELECT goes to the second server.
    Splitter { writer: Backend, reader: Backend },
    /// Nobody. Any login is accepted, and every command refused.
    Nobody,
}

/// A server to which the proxy itself logs in.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    pub(crate) port: u16,
    /// An account without a password.
    pub(crate) account: String,
    pub(crate) database: String,
    /// A statement that each session begins with.
    pub(crate) prepared: Option<&'static str>,
}

/// Where on its way a connection is when something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Before the server has said anything.
    Greeting,
    /// The client has said who it is.
    Login,
    /// The attempt to take a key.
    Acquire,
    Renew,
    Release,
    /// Removing what attempts of unknown outcome may have left.
    Forget,
    /// A question that changes nothing.
    Look,
    /// Ending another connection.
    Kill,
    /// The client's goodbye.
    Quit,
    Other,
}

/// What happens at a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The answer is this error, and the server has not heard of anything.
    Error(ServerError),
    /// The server carries it out, and the answer is this error all the same.
    ErrorAfter(ServerError),
    /// The connection ends before the server has heard of it: RST.
    Cut,
    /// The same, in an orderly way: FIN.
    HangUp,
    /// The server carries it out; the connection ends instead of an answer.
    CutAfter,
    /// The server carries it out; the answer never comes.
    HoldAfter,
    /// Nothing passes on this connection any more.
    Hold,
    /// Nothing passes any more, on any connection, but all seem to be there.
    BlackHole,
    /// The server ends: all connections are cut and new ones refused; for good
    /// or for this long.
    Down(Option<Duration>),
    /// The server carries it out and ends then, for good or for this long.
    DownAfter(Option<Duration>),
    /// The command reaches the server this much later, whether the client
    /// still waits or not.
    Late(Duration),
    /// The reply reaches the client this much later.
    LateAnswer(Duration),
    /// The client gets half of the reply, then the connection ends.
    HalfAnswer,
    /// The client gets bytes that make no sense.
    Garbage,
}

/// How often an order holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    Once,
    Always,
}

/// A command that the proxy has given to the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) stage: Stage,
    pub(crate) at: Tick,
}

#[derive(Debug)]
struct Shared {
    port: u16,
    listener: TcpListener,
    behind: Behind,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    mode: Mode,
    orders: Vec<(Stage, Act, Times)>,
    /// Both ends of every connection, to be cut.
    open: HashMap<u32, Vec<TcpStream>>,
    connections: u32,
    /// Connections up to this number have gone silent.
    silent: u32,
    /// Connections up to this number end with an RST.
    reset: u32,
    sent: Vec<Sent>,
    /// Stages of which the server has answered a command.
    done: HashSet<Stage>,
    /// Commands that are held back for a while.
    late: usize,
    /// Whether the port is open.
    listening: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Pass,
    BlackHole,
    /// The port is closed.
    Down,
    /// The proxy is being dropped.
    Gone,
}

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoesOn,
    Ends,
}

impl Stage {
    /// Returns the stage of a command by its text. Keys and owners are sent as
    /// hexadecimal digits, so that no text of a test can be mistaken.
    fn of(command: &Packet) -> Self {
        match command.payload.split_first() {
            Some((&wire::QUIT, _)) => Self::Quit,
            Some((&wire::QUERY, sql)) => Self::of_text(&String::from_utf8_lossy(sql)),
            _ => Self::Other,
        }
    }

    fn of_text(sql: &str) -> Self {
        let has = |start: &str| sql.split(";\n").any(|one| one.starts_with(start));
        if has("INSERT INTO dblock_lock") {
            Self::Acquire
        } else if has("UPDATE dblock_lock") {
            Self::Renew
        } else if has("DELETE FROM dblock_lock") && sql.contains("owner_id IN (") {
            Self::Forget
        } else if has("DELETE FROM dblock_lock") {
            Self::Release
        } else if has("KILL") {
            Self::Kill
        } else if has("SELECT") {
            Self::Look
        } else {
            Self::Other
        }
    }
}

impl Middleman {
    /// Starts a proxy that lets everything pass.
    pub(crate) fn start(behind: Behind) -> Self {
        let listener = listen().expect("there is a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let shared = Arc::new(Shared {
            port,
            listener,
            behind,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        shared.lock().listening = true;
        let proxy = Arc::clone(&shared);
        spawn(move || proxy.serve());
        Self { shared }
    }

    /// Returns the proxy's port.
    pub(crate) fn port(&self) -> u16 {
        self.shared.port
    }

    /// Says what happens at a stage. The first order of a stage holds.
    pub(crate) fn order(&self, stage: Stage, act: Act, times: Times) {
        self.shared.lock().orders.push((stage, act, times));
    }

    /// Closes the port, so that the kernel refuses connections; for good or
    /// for this long.
    pub(crate) fn down(&self, length: Option<Duration>) {
        self.shared.fall(length);
    }

    /// Does something to the connections that there are, and on which nothing
    /// is under way.
    pub(crate) fn strike(&self, act: Act) {
        self.shared.strike(act);
    }

    /// Returns how many connections there have been.
    pub(crate) fn connections(&self) -> u32 {
        self.shared.lock().connections
    }

    /// Waits until what was ordered for a stage happens, and until the server
    /// has done what it will do then.
    pub(crate) fn wait_for(&self, stage: Stage, act: Act) {
        let carried_out = !matches!(act, Act::Hold | Act::BlackHole | Act::Late(_));
        wait::until("an order to be obeyed", || {
            let state = self.shared.lock();
            let ordered = state.orders.iter().any(|order| order.0 == stage);
            let done = state.done.contains(&stage) || !carried_out;
            if !ordered && done {
                Ok(())
            } else {
                Err(format!("{state:?}"))
            }
        });
    }

    /// Waits until the server has been given every command that comes late,
    /// and has carried it out.
    pub(crate) fn wait_for_the_late(&self) {
        drop(self.shared.wait_until(|state| state.late == 0));
    }

    /// Returns what the server was given so far, and when.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.shared.lock().sent.clone()
    }
}

impl Drop for Middleman {
    fn drop(&mut self) {
        self.shared.switch(Mode::Gone);
        self.shared.cut_all();
        self.shared.stop_listening();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switch(&self, mode: Mode) {
        let mut state = self.lock();
        if state.mode != Mode::Gone {
            state.mode = mode;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until something holds.
    fn wait_until(&self, holds: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.changed.wait_while(self.lock(), |state| {
            !holds(state) && state.mode != Mode::Gone
        });
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass, unless the proxy ends.
    fn pause(&self, length: Duration) {
        let over = self
            .changed
            .wait_timeout_while(self.lock(), length, |state| state.mode != Mode::Gone);
        drop(over);
    }

    /// Waits while nothing passes on a connection; fails if nothing will.
    fn may_pass(&self, number: u32) -> io::Result<()> {
        let passes = |state: &State| state.mode != Mode::BlackHole && number > state.silent;
        match self.wait_until(passes).mode {
            Mode::Pass => Ok(()),
            _ => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Stops listening, which also wakes the thread that accepts connections.
    fn stop_listening(&self) {
        // It may have stopped already.
        socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Read).ok();
    }

    fn go_down(&self) {
        self.switch(Mode::Down);
        self.stop_listening();
        drop(self.wait_until(|state| !state.listening));
        self.cut_all();
    }

    fn come_up(&self) {
        self.switch(Mode::Pass);
        drop(self.wait_until(|state| state.listening));
    }

    /// Accepts connections as long as the port is to be open, and again when
    /// it is to be open again.
    fn serve(self: &Arc<Self>) {
        loop {
            self.accept();
            self.announce(false);
            if self.wait_until(|state| state.mode != Mode::Down).mode == Mode::Gone {
                return;
            }
            let queue = Backlog::MAXALLOWABLE;
            socket::listen(&self.listener, queue).expect("the port is kept");
            self.announce(true);
        }
    }

    fn announce(&self, listening: bool) {
        self.lock().listening = listening;
        self.changed.notify_all();
    }

    fn accept(self: &Arc<Self>) {
        for stream in self.listener.incoming() {
            if matches!(self.lock().mode, Mode::Down | Mode::Gone) {
                return;
            }
            // A client that gave up already is none of the proxy's business.
            let Ok(client) = stream else { continue };
            let mut state = self.lock();
            state.connections += 1;
            let number = state.connections;
            drop(state);
            let shared = Arc::clone(self);
            spawn(move || {
                let mut connection = Connection {
                    shared: &shared,
                    number,
                    client,
                    server: Servers::None,
                    reset: false,
                };
                // However it ends, the client sees that it has ended.
                connection.serve().ok();
                connection.end().ok();
            });
        }
    }

    /// Keeps an end of a connection, to be cut from elsewhere.
    fn keep(&self, number: u32, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut state = self.lock();
        if matches!(state.mode, Mode::Down | Mode::Gone) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let ends = state.open.entry(number).or_default();
        ends.push(stream.try_clone()?);
        Ok(())
    }

    fn cut_all(&self) {
        let ends: Vec<_> = self.lock().open.drain().collect();
        for stream in ends.iter().flat_map(|(_, streams)| streams) {
            // It may be closed already.
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    /// Returns what is to happen at a stage, and takes note that it has.
    fn ordered(&self, stage: Stage) -> Option<Act> {
        let mut state = self.lock();
        let at = state.orders.iter().position(|order| order.0 == stage)?;
        let (_, act, times) = state.orders[at];
        if times == Times::Once {
            state.orders.remove(at);
        }
        Some(act)
    }

    fn strike(self: &Arc<Self>, act: Act) {
        match act {
            Act::BlackHole => self.switch(Mode::BlackHole),
            Act::Down(length) => self.fall(length),
            Act::Hold => {
                let mut state = self.lock();
                state.silent = state.connections;
            }
            Act::Cut => {
                let mut state = self.lock();
                state.reset = state.connections;
                for client in state.open.values().filter_map(|ends| ends.first()) {
                    // The other side sees nothing of it, but our thread wakes.
                    client.shutdown(Shutdown::Read).ok();
                }
            }
            Act::Error(error) => {
                let packet = Packet::error(0, &error, true);
                let mut state = self.lock();
                for client in state.open.values_mut().filter_map(|ends| ends.first_mut()) {
                    packet.write(client).ok();
                }
                drop(state);
                self.cut_all();
            }
            _ => self.cut_all(),
        }
    }

    /// Goes down, and comes up again after a time, if there is one.
    fn fall(self: &Arc<Self>, length: Option<Duration>) {
        self.go_down();
        if let Some(length) = length {
            let shared = Arc::clone(self);
            spawn(move || {
                shared.pause(length);
                shared.come_up();
            });
        }
    }
}

/// The connection of one client.
struct Connection<'a> {
    shared: &'a Arc<Shared>,
    number: u32,
    client: TcpStream,
    server: Servers,
    /// Whether the client's end is to be an RST.
    reset: bool,
}

/// Where the commands of a connection go.
enum Servers {
    /// Nowhere (yet).
    None,
    One(TcpStream),
    Two {
        writer: TcpStream,
        reader: TcpStream,
    },
    /// To a new connection for each, made with this login.
    New(Backend, Packet),
}

impl Connection<'_> {
    fn serve(&mut self) -> io::Result<()> {
        self.shared.keep(self.number, &self.client)?;
        self.shared.may_pass(self.number)?;
        if self.log_in()? == Then::Ends {
            return Ok(());
        }
        loop {
            let command = Packet::read(&mut self.client)?;
            self.shared.may_pass(self.number)?;
            if self.command(&command)? == Then::Ends {
                return Ok(());
            }
        }
    }

    /// Ends the connection for both sides. An RST is what the system sends
    /// when the last descriptor of a socket that does not linger is closed.
    fn end(&self) -> io::Result<()> {
        let mut state = self.shared.lock();
        let ends = state.open.remove(&self.number);
        if self.reset || self.number <= state.reset {
            let at_once = libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            socket::setsockopt(&self.client, sockopt::Linger, &at_once)?;
            return Ok(());
        }
        for stream in ends.iter().flatten().chain([&self.client]) {
            stream.shutdown(Shutdown::Both).ok();
        }
        Ok(())
    }

    fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let server = TcpStream::connect(("127.0.0.1", port))?;
        self.shared.keep(self.number, &server)?;
        Ok(server)
    }

    fn log_in(&mut self) -> io::Result<Then> {
        if self.before(Stage::Greeting, None)? == Then::Ends {
            return Ok(Then::Ends);
        }
        match self.shared.behind.clone() {
            Behind::Server(port) => self.pass_login(port, 0, None),
            Behind::FoundRows(port) => self.pass_login(port, wire::FOUND_ROWS, None),
            Behind::Prepared(port, sql) => self.pass_login(port, 0, Some(sql)),
            behind => self.accept_login(behind),
        }
    }

    /// Lets the server greet the client and judge its login.
    fn pass_login(&mut self, port: u16, flag: u32, prepared: Option<&str>) -> io::Result<Then> {
        let mut server = self.connect(port)?;
        let greeting = Packet::read(&mut server)?;
        self.answer(&[greeting])?;
        let mut login = Packet::read(&mut self.client)?;
        login.must_be_plain()?;
        if self.before(Stage::Login, Some(&login))? == Then::Ends {
            return Ok(Then::Ends);
        }
        login.add_flag(flag);
        login.write(&mut server)?;
        loop {
            let packet = Packet::read(&mut server)?;
            if packet.ends_login() {
                // Before the client knows, as a server does it.
                let prepared = prepared.map(|sql| wire::execute(&mut server, sql));
                prepared.transpose()?;
                self.answer(&[packet])?;
                break;
            }
            self.answer(&[packet])?;
            Packet::read(&mut self.client)?.write(&mut server)?;
        }
        self.server = Servers::One(server);
        Ok(Then::GoesOn)
    }

    /// Takes every login.
    fn accept_login(&mut self, behind: Behind) -> io::Result<Then> {
        self.answer(&[wire::greeting(self.number)])?;
        let login = Packet::read(&mut self.client)?;
        login.must_be_plain()?;
        if self.before(Stage::Login, Some(&login))? == Then::Ends {
            return Ok(Then::Ends);
        }
        self.server = match behind {
            Behind::Pool(backend) => Servers::New(backend, login),
            Behind::Splitter { writer, reader } => Servers::Two {
                writer: self.log_in_at(&writer, &login)?,
                reader: self.log_in_at(&reader, &login)?,
            },
            _ => Servers::None,
        };
        self.answer(&[Packet::ok(2)])?;
        Ok(Then::GoesOn)
    }

    fn log_in_at(&self, backend: &Backend, login: &Packet) -> io::Result<TcpStream> {
        let mut server = self.connect(backend.port)?;
        wire::log_in(&mut server, login, &backend.account, &backend.database)?;
        if let Some(sql) = backend.prepared {
            wire::execute(&mut server, sql)?;
        }
        Ok(server)
    }

    /// Does what is ordered for a stage of the login.
    fn before(&mut self, stage: Stage, asked: Option<&Packet>) -> io::Result<Then> {
        let number = asked.map_or(0, |packet| packet.number.wrapping_add(1));
        let greeted = asked.is_some();
        match self.shared.ordered(stage) {
            None => Ok(Then::GoesOn),
            Some(Act::Error(error) | Act::ErrorAfter(error)) => {
                self.answer(&[Packet::error(number, &error, greeted)])?;
                Ok(Then::Ends)
            }
            Some(Act::HalfAnswer) => {
                let whole = wire::greeting(self.number).bytes();
                self.raw(&whole[..whole.len() / 2])?;
                Ok(Then::Ends)
            }
            Some(Act::Late(length) | Act::LateAnswer(length)) => {
                self.shared.pause(length);
                Ok(Then::GoesOn)
            }
            Some(act) => self.act(act),
        }
    }

    fn command(&mut self, command: &Packet) -> io::Result<Then> {
        let stage = Stage::of(command);
        let number = command.number.wrapping_add(1);
        let act = self.shared.ordered(stage);
        match act {
            Some(Act::Late(length)) => {
                self.shared.lock().late += 1;
                self.shared.pause(length);
            }
            Some(Act::Error(error)) => {
                self.answer(&[Packet::error(number, &error, true)])?;
                return Ok(Then::GoesOn);
            }
            Some(
                Act::Cut | Act::HangUp | Act::Hold | Act::BlackHole | Act::Down(_) | Act::Garbage,
            ) => return act.map_or(Ok(Then::Ends), |act| self.act(act)),
            _ => {}
        }
        self.shared.lock().sent.push(Sent {
            stage,
            at: clock::now(),
        });
        let reply = self.carry_out(command, stage);
        if let Some(Act::Late(_)) = act {
            self.shared.lock().late -= 1;
            self.shared.changed.notify_all();
        }
        let reply = reply?;
        self.shared.lock().done.insert(stage);
        match act {
            Some(Act::CutAfter) => return self.act(Act::Cut),
            Some(Act::DownAfter(length)) => return self.act(Act::Down(length)),
            Some(Act::HoldAfter) => return self.act(Act::Hold),
            Some(Act::ErrorAfter(error)) => self.answer(&[Packet::error(number, &error, true)])?,
            Some(Act::HalfAnswer) => {
                let whole: Vec<u8> = reply.iter().flat_map(Packet::bytes).collect();
                self.raw(&whole[..whole.len() / 2])?;
                return Ok(Then::Ends);
            }
            Some(Act::LateAnswer(length)) => {
                self.shared.pause(length);
                self.answer(&reply)?;
            }
            _ => self.answer(&reply)?,
        }
        Ok(if stage == Stage::Quit {
            Then::Ends
        } else {
            Then::GoesOn
        })
    }

    /// Gives a command to the server and returns its whole reply.
    fn carry_out(&mut self, command: &Packet, stage: Stage) -> io::Result<Vec<Packet>> {
        let server = match &mut self.server {
            Servers::None => {
                let nobody = ServerError {
                    code: 1105,
                    state: "HY000",
                    message: "nobody is behind the proxy",
                };
                return Ok(vec![Packet::error(1, &nobody, true)]);
            }
            Servers::New(..) if stage == Stage::Quit => return Ok(Vec::new()),
            Servers::New(backend, login) => {
                let (backend, login) = (backend.clone(), login.clone());
                let mut server = self.log_in_at(&backend, &login)?;
                command.write(&mut server)?;
                let reply = wire::read_reply(&mut server);
                // It is not used again, and ends with all that is open in it.
                server.shutdown(Shutdown::Both)?;
                return reply;
            }
            Servers::One(server) => server,
            Servers::Two { writer, reader } => {
                // The first word decides, as a splitter knows nothing else.
                if command.payload.get(1..7) == Some(b"SELECT") {
                    reader
                } else {
                    writer
                }
            }
        };
        command.write(server)?;
        if stage == Stage::Quit {
            return Ok(Vec::new());
        }
        wire::read_reply(server)
    }

    /// Does what has nothing to do with an answer.
    fn act(&mut self, act: Act) -> io::Result<Then> {
        match act {
            Act::Cut => {
                self.reset = true;
                Ok(Then::Ends)
            }
            Act::Hold => {
                drop(self.shared.wait_until(|_| false));
                Ok(Then::Ends)
            }
            Act::BlackHole => {
                self.shared.switch(Mode::BlackHole);
                self.shared.may_pass(self.number)?;
                Ok(Then::Ends)
            }
            Act::Down(length) => {
                self.shared.fall(length);
                Ok(Then::Ends)
            }
            Act::Garbage => {
                self.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")?;
                Ok(Then::Ends)
            }
            _ => Ok(Then::Ends),
        }
    }

    fn answer(&mut self, packets: &[Packet]) -> io::Result<()> {
        let bytes: Vec<u8> = packets.iter().flat_map(Packet::bytes).collect();
        self.raw(&bytes)
    }

    fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.shared.may_pass(self.number)?;
        io::Write::write_all(&mut self.client, bytes)
    }
}

/// Listens on a free port that was asked for by its number: such a socket keeps
/// its port while it does not listen, so that connections are refused and no
/// other program gets them.
fn listen() -> io::Result<TcpListener> {
    loop {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // Somebody else may have been faster.
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return Ok(listener);
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    thread::Builder::new()
        .spawn(work)
        .expect("a thread for the proxy");
}
