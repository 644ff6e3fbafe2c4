//! As much of the MySQL client/server protocol as a proxy needs that acts on
//! single commands: packets, whole replies, logins and errors.

use std::io::{self, Read, Write};

/// Capability flags of the login; names and numbers as in the protocol's
/// documentation.
const LONG_PASSWORD: u32 = 0x1;
pub(crate) const FOUND_ROWS: u32 = 0x2;
const LONG_FLAG: u32 = 0x4;
const CONNECT_WITH_DB: u32 = 0x8;
const SSL: u32 = 0x800;
const PROTOCOL_41: u32 = 0x200;
const TRANSACTIONS: u32 = 0x2000;
const SECURE_CONNECTION: u32 = 0x8000;
const MULTI_STATEMENTS: u32 = 0x1_0000;
const MULTI_RESULTS: u32 = 0x2_0000;
const PLUGIN_AUTH: u32 = 0x8_0000;
const LENENC_AUTH: u32 = 0x20_0000;
const DEPRECATE_EOF: u32 = 0x100_0000;

/// What [`greeting`] offers: enough for the statements of dblock, and nothing
/// that changes the form of replies.
const OFFERED: u32 = LONG_PASSWORD
    | FOUND_ROWS
    | LONG_FLAG
    | CONNECT_WITH_DB
    | PROTOCOL_41
    | TRANSACTIONS
    | SECURE_CONNECTION
    | MULTI_STATEMENTS
    | MULTI_RESULTS
    | PLUGIN_AUTH
    | LENENC_AUTH;

/// The flag of a reply that more results follow.
const MORE_RESULTS: u16 = 0x8;

const NATIVE_PASSWORD: &[u8] = b"mysql_native_password\0";

/// First bytes of the packets that are told apart by it.
const OK: u8 = 0x00;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;

/// First bytes of the commands that are told apart.
pub(crate) const QUIT: u8 = 0x01;
pub(crate) const QUERY: u8 = 0x03;

/// One packet: three bytes of length, a number, and the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) number: u8,
    pub(crate) payload: Vec<u8>,
}

/// An error as a server sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerError {
    pub(crate) code: u16,
    /// The SQL state, five characters.
    pub(crate) state: &'static str,
    pub(crate) message: &'static str,
}

impl Packet {
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 4];
        from.read_exact(&mut head)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
        let mut payload = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        from.read_exact(&mut payload)?;
        Ok(Self {
            number: head[3],
            payload,
        })
    }

    /// Returns the packet as it goes over the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        assert!(length < 0xff_ffff, "no test sends 16 MiB");
        let mut bytes = length.to_le_bytes()[..3].to_vec();
        bytes.push(self.number);
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.bytes())
    }

    /// Returns an error packet. An error in place of a greeting has no SQL
    /// state, because nothing is agreed upon yet.
    pub(crate) fn error(number: u8, error: &ServerError, greeted: bool) -> Self {
        let mut payload = vec![ERROR];
        payload.extend_from_slice(&error.code.to_le_bytes());
        if greeted {
            payload.push(b'#');
            payload.extend_from_slice(error.state.as_bytes());
        }
        payload.extend_from_slice(error.message.as_bytes());
        Self { number, payload }
    }

    /// Returns the packet that says that it worked, and nothing more.
    pub(crate) fn ok(number: u8) -> Self {
        let payload = vec![OK, 0, 0, 2, 0, 0, 0];
        Self { number, payload }
    }

    fn starts_with(&self, byte: u8) -> bool {
        self.payload.first() == Some(&byte)
    }

    /// Tells whether a login ends with this packet, in whatever way.
    pub(crate) fn ends_login(&self) -> bool {
        self.starts_with(OK) || self.starts_with(ERROR)
    }

    /// Returns the capability flags that a login asks for.
    fn flags(&self) -> u32 {
        match self.payload.first_chunk() {
            Some(bytes) => u32::from_le_bytes(*bytes),
            None => 0,
        }
    }

    /// Adds a capability flag to a login.
    pub(crate) fn add_flag(&mut self, flag: u32) {
        let flags = self.flags() | flag;
        if let Some(bytes) = self.payload.first_chunk_mut() {
            *bytes = flags.to_le_bytes();
        }
    }

    /// Fails if what follows this login could not be read by [`read_reply`].
    pub(crate) fn must_be_plain(&self) -> io::Result<()> {
        if self.flags() & (SSL | DEPRECATE_EOF) == 0 {
            Ok(())
        } else {
            Err(io::Error::other("the proxy reads the plain protocol only"))
        }
    }
}

/// Returns the greeting of a server that accepts any login.
pub(crate) fn greeting(connection: u32) -> Packet {
    let (flags, scramble) = (OFFERED.to_le_bytes(), [b'x'; 20]);
    let mut payload = vec![10];
    payload.extend_from_slice(b"8.0.0-proxy\0");
    payload.extend_from_slice(&connection.to_le_bytes());
    payload.extend_from_slice(&scramble[..8]);
    payload.push(0);
    payload.extend_from_slice(&flags[..2]);
    // Character set utf8mb4, status autocommit.
    payload.extend_from_slice(&[45, 2, 0]);
    payload.extend_from_slice(&flags[2..]);
    payload.push(21);
    payload.extend_from_slice(&[0; 10]);
    payload.extend_from_slice(&scramble[8..]);
    payload.push(0);
    payload.extend_from_slice(NATIVE_PASSWORD);
    Packet { number: 0, payload }
}

/// Logs in to a server as an account without a password, as the client would
/// that answered [`greeting`] with `login`.
pub(crate) fn log_in(
    server: &mut (impl Read + Write),
    login: &Packet,
    account: &str,
    database: &str,
) -> io::Result<()> {
    Packet::read(server)?;
    let flags = (login.flags() & OFFERED) | CONNECT_WITH_DB;
    let mut payload = flags.to_le_bytes().to_vec();
    // Packet size, character set and reserved bytes.
    payload.extend_from_slice(login.payload.get(4..32).unwrap_or(&[0; 28]));
    payload.extend_from_slice(account.as_bytes());
    // The end of the name, and a password of no length.
    payload.extend_from_slice(&[0, 0]);
    payload.extend_from_slice(database.as_bytes());
    payload.push(0);
    payload.extend_from_slice(NATIVE_PASSWORD);
    Packet { number: 1, payload }.write(server)?;
    loop {
        let answer = Packet::read(server)?;
        match answer.payload.first() {
            Some(&OK) => return Ok(()),
            // To another way of logging in, too, no password is the answer.
            Some(&END) => Packet {
                number: answer.number.wrapping_add(1),
                payload: Vec::new(),
            }
            .write(server)?,
            _ => return Err(refused(&answer)),
        }
    }
}

fn refused(answer: &Packet) -> io::Error {
    io::Error::other(String::from_utf8_lossy(&answer.payload).into_owned())
}

/// Carries out a statement, which must work.
pub(crate) fn execute(server: &mut (impl Read + Write), sql: &str) -> io::Result<()> {
    let payload = [&[QUERY], sql.as_bytes()].concat();
    Packet { number: 0, payload }.write(server)?;
    match read_reply(server)?.first() {
        Some(answer) if answer.starts_with(ERROR) => Err(refused(answer)),
        _ => Ok(()),
    }
}

/// Reads all packets of the reply to one command, of all its statements.
pub(crate) fn read_reply(from: &mut impl Read) -> io::Result<Vec<Packet>> {
    let mut reply = Vec::new();
    while read_result(from, &mut reply)? {}
    Ok(reply)
}

/// Reads the result of one statement; tells whether another one follows.
fn read_result(from: &mut impl Read, reply: &mut Vec<Packet>) -> io::Result<bool> {
    let mut next = || -> io::Result<Packet> {
        let packet = Packet::read(from)?;
        reply.push(packet.clone());
        Ok(packet)
    };
    let first = next()?;
    match first.payload.first() {
        Some(&ERROR) => return Ok(false),
        Some(&OK) => return Ok(status(&first) & MORE_RESULTS != 0),
        _ => {}
    }
    // The columns, whose number is below 251, and a mark at their end.
    let columns = first.payload.first().copied().unwrap_or(0);
    for _ in 0..=columns {
        next()?;
    }
    loop {
        let row = next()?;
        if row.starts_with(ERROR) {
            return Ok(false);
        }
        if row.starts_with(END) {
            let status = row.payload.get(3..5).map_or(0, number);
            return Ok(status & MORE_RESULTS != 0);
        }
    }
}

/// Returns the status of a packet that says that it worked: it stands behind
/// two numbers of variable length.
fn status(packet: &Packet) -> u16 {
    let mut at = 1;
    for _ in 0..2 {
        at += match packet.payload.get(at) {
            Some(0xfc) => 3,
            Some(0xfd) => 4,
            Some(0xfe) => 9,
            _ => 1,
        };
    }
    packet.payload.get(at..at + 2).map_or(0, number)
}

fn number(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}
