//! The table: each fault that is tried, and how the run ends.

use std::time::Duration;

use super::{Act, End, Fault, Left, Phase, Section, ServerError, Stage, Times, When};
use Phase::{Acquire, Connect, DeafSignal, Idle, Patient, Release, Renew, ShortIdle, Signal};
use Stage::{Greeting, Login};
use Times::{Always, Once};

// What comes of a fault.

/// The job runs as if nothing had happened.
const RAN: End = ran(Left::Nothing, When::AtOnce);
/// The same, after one call that had no answer in time.
const RAN_LATE: End = ran(Left::Nothing, When::OneCall);
/// The same, after a wait for the server to be back.
const RAN_BACK: End = ran(Left::Nothing, When::Back);
/// The job has run, but the row has to expire.
const RAN_KEPT: End = ran(Left::Expiring, When::AtOnce);
const RAN_LATE_KEPT: End = ran(Left::Expiring, When::OneCall);
/// The job has run; the release is tried for a while, in vain.
const UNRELEASED: End = ran(Left::Expiring, When::TwoCalls);
/// The same, but one of the attempts has worked without being heard of.
const UNHEARD: End = ran(Left::Nothing, When::TwoCalls);
/// The job is stopped before its lease ends, and the row is removed.
const STOPPED: End = stopped(Left::Nothing);
/// The same, but the row has to expire.
const STOPPED_KEPT: End = stopped(Left::Expiring);
/// No job, at once.
const NO_CONTACT: End = never(69, Left::Nothing, When::AtOnce);
/// No job, after `--connect-timeout`.
const NO_ANSWER: End = never(69, Left::Nothing, When::Contact);
/// The same, and a row that has to expire.
const NO_ANSWER_KEPT: End = never(69, Left::Expiring, When::Contact);
/// No job, after `--wait`.
const NO_PATIENCE: End = never(69, Left::Nothing, When::Patience);
/// No job, at once: somebody has to change something.
const REFUSED: End = never(78, Left::Nothing, When::AtOnce);

/// Dead of the signal, before there was a job, and nothing is left.
const TERMINATED: End = never(super::TERMINATED, Left::Nothing, When::LastWord);
/// The same, but the row has to expire.
const TERMINATED_KEPT: End = never(super::TERMINATED, Left::Expiring, When::LastWord);

const fn ran(left: Left, when: When) -> End {
    End {
        starts: 1,
        status: super::STATUS,
        left,
        when,
    }
}

const fn stopped(left: Left) -> End {
    End {
        starts: 1,
        status: 76,
        left,
        when: When::Lease,
    }
}

const fn never(status: i32, left: Left, when: When) -> End {
    End {
        starts: 0,
        status,
        left,
        when,
    }
}

// What a server or a proxy says.

const TOO_MANY: ServerError = error(1040, "08004", "Too many connections");
const DENIED: ServerError = error(1045, "28000", "Access denied for user");
const NOT_READY: ServerError = error(1047, "08S01", "WSREP has not yet prepared node");
const SHUTDOWN: ServerError = error(1053, "08S01", "Server shutdown in progress");
const BLOCKED: ServerError = error(1129, "HY000", "Host is blocked");
const AT_COMMIT: ServerError = error(1180, "HY000", "Got error 6 during COMMIT");
const LOCK_WAIT: ServerError = error(1205, "HY000", "Lock wait timeout exceeded");
const DEADLOCK: ServerError = error(1213, "40001", "Deadlock found");
const READ_ONLY: ServerError = error(1290, "HY000", "running with the --read-only option");
const INTERRUPTED: ServerError = error(1317, "70100", "Query execution was interrupted");
const GONE: ServerError = error(2006, "HY000", "MySQL server has gone away");
const LOST: ServerError = error(2013, "HY000", "Lost connection to MySQL server");
const ROLLED_BACK: ServerError = error(3101, "40000", "Plugin instructed to roll back");
const NO_TLS: ServerError = error(3159, "HY000", "Insecure transport is prohibited");
const IDLE: ServerError = error(4031, "HY000", "Disconnected because of inactivity");
const NO_BACKEND: ServerError = error(9001, "HY000", "Max connect timeout reached");
const UNHEARD_OF: ServerError = error(12345, "HY000", "Something that no manual mentions");

const fn error(code: u16, state: &'static str, message: &'static str) -> ServerError {
    ServerError {
        code,
        state,
        message,
    }
}

// How late something comes: below the limit of a call, below that of a first
// contact, and beyond both.

const HALF_A_SECOND: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);
const A_LOOKUP: Duration = Duration::from_millis(2400);
const THREE_SECONDS: Duration = Duration::from_secs(3);
const FIVE_SECONDS: Duration = Duration::from_secs(5);

/// The tables of the document.
pub(super) const SECTIONS: &[Section] = &[
    Section {
        title: "While connecting",
        about: "Nothing has been asked for yet, so that nothing can be left behind. Without\n\
                `--wait` dblock does not try again when no connection can be made; with it, it\n\
                does, but for no longer than `--connect-timeout` if the server never answers.",
        phases: &[Connect, Patient],
        faults: CONNECTING,
    },
    Section {
        title: "While nothing is under way",
        about: "The job runs and the connection is idle. What happens is noticed at the next\n\
                renewal, or at the release if the job ends before one is due.",
        phases: &[Idle, ShortIdle],
        faults: BETWEEN,
    },
    Section {
        title: "While a command is under way",
        about: "The three commands of a run. *Carried out* means that the server has done\n\
                what it was asked for although dblock does not hear of it. An attempt to\n\
                acquire that reaches the server after everything is over takes the key for\n\
                nobody, and its row stays.",
        phases: &[Acquire, Renew, Release],
        faults: CALLS,
    },
    Section {
        title: "When SIGTERM comes while dblock waits for an answer",
        about: "The attempt to acquire is under way when somebody ends dblock. Over a second\n\
                connection dblock sends KILL for the first one, and if it hears that the first\n\
                one has ended or been granted the key, it removes the row. It takes a second\n\
                for that at most. A grant that it does not hear of in this time is left behind.",
        phases: &[Signal, DeafSignal],
        faults: SIGNALLED,
    },
];

/// A fault while connecting, at one of two stages.
const fn at<const N: usize>(
    stage: Stage,
    what: &'static str,
    act: Act,
    times: Times,
    ends: &'static [End; N],
) -> Fault {
    Fault {
        stage: Some(stage),
        what,
        act,
        times,
        ends,
    }
}

/// A fault whose stage is that of the phase.
const fn on<const N: usize>(
    what: &'static str,
    act: Act,
    times: Times,
    ends: &'static [End; N],
) -> Fault {
    Fault {
        stage: None,
        what,
        act,
        times,
        ends,
    }
}

#[rustfmt::skip]
const CONNECTING: &[Fault] = &[
    at(Greeting, "nothing listens on the port, for 1 s", Act::Down(Some(SECOND)), Once, &[NO_CONTACT, RAN_BACK]),
    at(Greeting, "nothing listens on the port", Act::Down(None), Always, &[NO_CONTACT, NO_ANSWER]),
    at(Greeting, "the host takes the connection and is silent (black hole)", Act::BlackHole, Always, &[NO_ANSWER, NO_ANSWER]),
    at(Greeting, "reset in place of a greeting", Act::Cut, Once, &[NO_CONTACT, RAN]),
    at(Greeting, "reset in place of a greeting", Act::Cut, Always, &[NO_CONTACT, NO_ANSWER]),
    at(Greeting, "end of the connection in place of a greeting", Act::HangUp, Once, &[NO_CONTACT, RAN]),
    at(Greeting, "half of a greeting, then the end", Act::HalfAnswer, Once, &[NO_CONTACT, RAN]),
    at(Greeting, "the greeting of some other protocol", Act::Garbage, Once, &[NO_CONTACT, RAN]),
    at(Greeting, "the greeting comes 0.5 s late", Act::LateAnswer(HALF_A_SECOND), Always, &[RAN, RAN]),
    at(Greeting, "the greeting comes 2.4 s late", Act::LateAnswer(A_LOOKUP), Always, &[RAN, RAN]),
    at(Greeting, "the greeting comes 5 s late", Act::LateAnswer(FIVE_SECONDS), Always, &[NO_ANSWER, NO_ANSWER]),
    at(Greeting, "error 1040: too many connections", Act::Error(TOO_MANY), Once, &[RAN, RAN]),
    at(Greeting, "error 1040: too many connections", Act::Error(TOO_MANY), Always, &[NO_ANSWER, NO_PATIENCE]),
    at(Greeting, "error 1053: the server shuts down", Act::Error(SHUTDOWN), Once, &[NO_CONTACT, RAN]),
    at(Greeting, "error 1053: the server shuts down", Act::Error(SHUTDOWN), Always, &[NO_CONTACT, NO_ANSWER]),
    at(Greeting, "error 1129: this host is blocked", Act::Error(BLOCKED), Always, &[REFUSED, REFUSED]),
    at(Login, "silence during the login", Act::Hold, Always, &[NO_ANSWER, NO_ANSWER]),
    at(Login, "reset during the login", Act::Cut, Once, &[NO_CONTACT, RAN]),
    at(Login, "an answer to the login that makes no sense", Act::Garbage, Once, &[NO_CONTACT, RAN]),
    at(Login, "error 1045: access denied", Act::Error(DENIED), Always, &[REFUSED, REFUSED]),
    at(Login, "error 3159: TLS is required", Act::Error(NO_TLS), Always, &[REFUSED, REFUSED]),
    at(Login, "error 9001: a proxy finds no server", Act::Error(NO_BACKEND), Once, &[NO_CONTACT, RAN]),
    at(Login, "error 9001: a proxy finds no server", Act::Error(NO_BACKEND), Always, &[NO_CONTACT, NO_ANSWER]),
    at(Login, "error 12345: unknown to everybody", Act::Error(UNHEARD_OF), Once, &[NO_CONTACT, RAN]),
    at(Login, "error 12345: unknown to everybody", Act::Error(UNHEARD_OF), Always, &[NO_CONTACT, NO_ANSWER]),
];

#[rustfmt::skip]
const BETWEEN: &[Fault] = &[
    on("the connection is ended", Act::HangUp, Once, &[RAN, RAN]),
    on("the connection is reset", Act::Cut, Once, &[RAN, RAN]),
    on("the connection is forgotten: nothing passes, and nothing says so", Act::Hold, Once, &[RAN, RAN_LATE]),
    on("error 4031, then the end: idle for too long", Act::Error(IDLE), Once, &[RAN, RAN]),
    on("error 1053, then the end: the server shuts down", Act::Error(SHUTDOWN), Once, &[RAN, RAN]),
    at(Greeting, "the connection is ended; the greeting of the next comes 1 s late", Act::LateAnswer(SECOND), Always, &[RAN, RAN]),
    at(Greeting, "the connection is ended; the greeting of the next never comes", Act::Hold, Always, &[STOPPED_KEPT, UNRELEASED]),
    at(Greeting, "the connection is ended; error 1040 for the next: too many connections", Act::Error(TOO_MANY), Once, &[RAN, RAN]),
    at(Greeting, "the connection is ended; error 1040 for the next: too many connections", Act::Error(TOO_MANY), Always, &[STOPPED_KEPT, UNRELEASED]),
    at(Login, "the connection is ended; error 1045 for the next: the password was changed", Act::Error(DENIED), Always, &[STOPPED_KEPT, RAN_KEPT]),
    on("the server goes away for 1 s", Act::Down(Some(SECOND)), Once, &[RAN, RAN_BACK]),
    on("the server goes away", Act::Down(None), Always, &[STOPPED_KEPT, UNRELEASED]),
    on("silence on all connections (black hole)", Act::BlackHole, Always, &[STOPPED_KEPT, UNRELEASED]),
];

#[rustfmt::skip]
const CALLS: &[Fault] = &[
    on("reset, before the server has heard of it", Act::Cut, Once, &[RAN, RAN, RAN]),
    on("reset, before the server has heard of it", Act::Cut, Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("end of the connection, before the server has heard of it", Act::HangUp, Once, &[RAN, RAN, RAN]),
    on("silence on this connection", Act::Hold, Once, &[RAN_LATE, RAN, RAN_LATE]),
    on("silence on all connections (black hole)", Act::BlackHole, Always, &[NO_ANSWER, STOPPED_KEPT, UNRELEASED]),
    on("carried out, and reset in place of an answer", Act::CutAfter, Once, &[RAN, RAN, RAN]),
    on("carried out, and reset in place of an answer", Act::CutAfter, Always, &[NO_ANSWER, STOPPED, UNHEARD]),
    on("carried out, but the answer never comes", Act::HoldAfter, Once, &[RAN_LATE, RAN, RAN_LATE]),
    on("carried out, but the answer never comes", Act::HoldAfter, Always, &[NO_ANSWER, STOPPED_KEPT, UNHEARD]),
    on("carried out, half of an answer, then the end", Act::HalfAnswer, Once, &[RAN, RAN, RAN]),
    on("an answer that makes no sense", Act::Garbage, Once, &[RAN, RAN, RAN]),
    on("the server goes away for 1 s", Act::Down(Some(SECOND)), Once, &[RAN_BACK, RAN, RAN_BACK]),
    on("the server goes away", Act::Down(None), Always, &[NO_ANSWER, STOPPED_KEPT, UNRELEASED]),
    on("carried out, then the server goes away for 1 s", Act::DownAfter(Some(SECOND)), Once, &[RAN_BACK, RAN, RAN_BACK]),
    on("carried out, then the server goes away", Act::DownAfter(None), Always, &[NO_ANSWER_KEPT, STOPPED_KEPT, UNHEARD]),
    on("it reaches the server 0.5 s late", Act::Late(HALF_A_SECOND), Once, &[RAN, RAN, RAN]),
    on("it reaches the server 3 s late, when nobody waits for it", Act::Late(THREE_SECONDS), Once, &[RAN_LATE_KEPT, RAN, RAN_LATE]),
    on("the answer comes 0.5 s late", Act::LateAnswer(HALF_A_SECOND), Once, &[RAN, RAN, RAN]),
    on("the answer comes 3 s late, when nobody waits for it", Act::LateAnswer(THREE_SECONDS), Once, &[RAN_LATE, RAN, RAN_LATE]),
    on("error 1213: deadlock", Act::Error(DEADLOCK), Once, &[RAN, RAN, RAN]),
    on("error 1213: deadlock", Act::Error(DEADLOCK), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 1205: lock wait timeout", Act::Error(LOCK_WAIT), Once, &[RAN, RAN, RAN]),
    on("error 1205: lock wait timeout", Act::Error(LOCK_WAIT), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 3101: rolled back at commit (Group Replication)", Act::Error(ROLLED_BACK), Once, &[RAN, RAN, RAN]),
    on("error 3101: rolled back at commit (Group Replication)", Act::Error(ROLLED_BACK), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 1180: during commit, not carried out", Act::Error(AT_COMMIT), Once, &[RAN, RAN, RAN]),
    on("error 1180: during commit, not carried out", Act::Error(AT_COMMIT), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 1180: during commit, but carried out", Act::ErrorAfter(AT_COMMIT), Once, &[RAN, RAN, RAN]),
    on("error 1180: during commit, but carried out", Act::ErrorAfter(AT_COMMIT), Always, &[NO_ANSWER, STOPPED, UNHEARD]),
    on("error 1047: node not ready (Galera)", Act::Error(NOT_READY), Once, &[RAN, RAN, RAN]),
    on("error 1047: node not ready (Galera)", Act::Error(NOT_READY), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 1053: the server shuts down", Act::Error(SHUTDOWN), Once, &[RAN, RAN, RAN]),
    on("error 1053: the server shuts down", Act::Error(SHUTDOWN), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 1317: interrupted", Act::Error(INTERRUPTED), Once, &[RAN, RAN, RAN]),
    on("error 1317: interrupted", Act::Error(INTERRUPTED), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 1290: the server is read-only (a failover)", Act::Error(READ_ONLY), Once, &[REFUSED, RAN, RAN]),
    on("error 1290: the server is read-only", Act::Error(READ_ONLY), Always, &[REFUSED, STOPPED, UNRELEASED]),
    on("error 2006: gone away, says a proxy", Act::Error(GONE), Once, &[RAN, RAN, RAN]),
    on("error 2006: gone away, says a proxy", Act::Error(GONE), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 2013: connection lost, says a proxy", Act::Error(LOST), Once, &[RAN, RAN, RAN]),
    on("error 2013: connection lost, says a proxy", Act::Error(LOST), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 9001: a proxy finds no server", Act::Error(NO_BACKEND), Once, &[RAN, RAN, RAN]),
    on("error 9001: a proxy finds no server", Act::Error(NO_BACKEND), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 12345: unknown to everybody", Act::Error(UNHEARD_OF), Once, &[RAN, RAN, RAN]),
    on("error 12345: unknown to everybody", Act::Error(UNHEARD_OF), Always, &[NO_ANSWER, STOPPED, UNRELEASED]),
    on("error 1045: access denied", Act::Error(DENIED), Once, &[REFUSED, RAN, RAN_KEPT]),
    on("error 1045: access denied", Act::Error(DENIED), Always, &[REFUSED, STOPPED, RAN_KEPT]),
];

#[rustfmt::skip]
const SIGNALLED: &[Fault] = &[
    on("silence on this connection", Act::Hold, Once, &[TERMINATED, TERMINATED]),
    on("silence on all connections (black hole)", Act::BlackHole, Once, &[TERMINATED, TERMINATED]),
    on("carried out, but the answer never comes", Act::HoldAfter, Once, &[TERMINATED_KEPT, TERMINATED_KEPT]),
    on("it reaches the server 3 s late, when nobody waits for it", Act::Late(THREE_SECONDS), Once, &[TERMINATED, TERMINATED_KEPT]),
    on("the answer comes 0.5 s late", Act::LateAnswer(HALF_A_SECOND), Once, &[TERMINATED, TERMINATED]),
    on("the answer comes 3 s late, when nobody waits for it", Act::LateAnswer(THREE_SECONDS), Once, &[TERMINATED_KEPT, TERMINATED_KEPT]),
];
