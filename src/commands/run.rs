//! `dblock run`: the hands of [`crate::supervise`]. It makes no decision.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anyhow::{Context, Error};
use nix::libc;
use nix::unistd::{Pid, getpgrp};

use super::nested::{self, Nested};
use super::obtain::{asked_slot, dismiss, obtain, slots_differ, wanted};
use crate::acquisition::{Refusal, Won};
use crate::child::JobSpec;
use crate::cli::{LeftoversArg, RunArgs, WakeArg};
use crate::clock::{self, Tick};
use crate::config;
use crate::exit::{Exit, Status};
use crate::guard::{Guard, Report};
use crate::inbox::{Inbox, Incoming};
use crate::keeper::{Call, Keeper};
use crate::lease::Timeline;
use crate::lease_file::{LeaseFile, Record};
use crate::lock::{Holder, Kind, Owner, to_millis};
use crate::nesting::{self, Outer};
use crate::output::{self, Console, HeldBy, RunReport, StatusRow};
use crate::signals::{self, Inherited, Relay, Sig};
use crate::store::Limits;
use crate::supervise::{Action, Ended, Event, Leftovers, Naming, Note, Outcome, Plan, Supervisor};
use crate::terminal::{self, Terminal};

/// Pause between looks at the processes of a job whose guard has died.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub(super) fn run(args: &RunArgs) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let line = Timeline::new(args.lock.ttl, args.kill_after)?;
    let outers = config::outer_leases()?;
    let slot = asked_slot(&args.lock);
    let candidates = nesting::candidates(&outers, &args.lock.key);
    let Some(settings) = config::settings_if_any(&args.store)? else {
        return match nested::look_around(args, slot, &candidates)? {
            Nested::Apart => Err(config::nothing_configured().into()),
            Nested::Refused(exit) => Ok(exit),
            Nested::Under(record, place) => nested::run_under(args, record, place),
        };
    };
    let claimant = config::claimant(&args.command, args.lock.note.clone());
    // Before there is a second thread or a handler.
    let mut guard = Guard::fork(|inherited| job_spec(args, inherited))
        .context("cannot start the guard process")?;
    // Behind the fork, because a connection may leave a thread behind.
    match nested::look(args, &settings, slot, &candidates)? {
        Nested::Apart => {}
        Nested::Refused(exit) => return Ok(exit),
        Nested::Under(record, place) => {
            guard.dismiss();
            return nested::run_under(args, record, place);
        }
    }
    // Before any thread, connection or job: from here on no signal is lost.
    let relay = Relay::install().context("cannot install signal handlers")?;
    let mut inbox = Inbox::new(relay).context("cannot wait for events")?;
    let store = settings.endpoint.open(Limits {
        connect: settings.connect_timeout,
        call: line.call_limit(),
        idle: args.lock.ttl.get(),
        queue: args.lock.wake == WakeArg::Auto,
    });
    guard.confirm().context("cannot start the guard process")?;
    let lease = LeaseFile::new().context("cannot make a file in memory for the job")?;
    let mut keeper = Keeper::start(store, inbox.postbox()).context("cannot start a thread")?;
    let started = clock::now();
    let wanted = wanted(&args.lock, Kind::Run, claimant, settings.connect_timeout);
    match obtain(wanted, &mut inbox, &mut keeper, console)? {
        Ok(won) => {
            let waited = clock::now() - started;
            console.tell(&format_args!(
                "\"{}\" granted with token {}",
                won.grant.key, won.grant.token
            ));
            let mut hands = Hands {
                args,
                console,
                record: Record {
                    grant: won.grant.clone(),
                    slots: args.lock.slots,
                    ttl: args.lock.ttl.get(),
                    table: settings.endpoint.table(),
                },
                lease,
                outers,
                won,
                granted_at: clock::now(),
                acquired_at: output::time_of_day(),
                renewals: 0,
                guard,
                terminal: Terminal::open(),
                naming: None,
                patience: Duration::ZERO,
                gone_at: None,
            };
            let plan = Plan {
                line,
                timeout: args.timeout,
                leftovers: match args.leftovers {
                    LeftoversArg::Wait => Leftovers::Wait,
                    LeftoversArg::Kill => Leftovers::Kill,
                    LeftoversArg::Leave => Leftovers::Leave,
                },
                delays_after_loss: !args.lock.lock_delay.is_zero(),
            };
            let outcome = hands.supervise(plan, &mut inbox, &keeper)?;
            dismiss(keeper, &mut inbox);
            let exit = hands.conclude(&outcome, waited);
            hands.guard.dismiss();
            Ok(exit)
        }
        Err(refusal) => {
            dismiss(keeper, &mut inbox);
            guard.dismiss();
            refused(args, console, refusal, clock::now() - started)
        }
    }
}

/// Returns what is to be started.
pub(super) fn job_spec(args: &RunArgs, inherited: Inherited) -> JobSpec {
    let (command, arguments) = match args.command.split_first() {
        Some((command, arguments)) => (command.clone(), arguments.to_vec()),
        None => Default::default(),
    };
    JobSpec {
        command,
        arguments,
        remove: if args.pass_credentials {
            Vec::new()
        } else {
            config::CREDENTIALS.to_vec()
        },
        path: config::search_path(),
        inherited,
        heir_of: (!terminal::in_pipeline()).then(getpgrp),
    }
}

/// What the actions are carried out with.
struct Hands<'a> {
    args: &'a RunArgs,
    console: Console,
    record: Record,
    lease: LeaseFile,
    /// The leases of the jobs around this run.
    outers: Vec<Outer>,
    won: Won,
    granted_at: Tick,
    acquired_at: String,
    renewals: u64,
    guard: Guard,
    terminal: Option<Terminal>,
    naming: Option<Naming>,
    /// How long the guard may take to answer an order to kill.
    patience: Duration,
    gone_at: Option<Tick>,
}

impl Hands<'_> {
    fn supervise(&mut self, plan: Plan, inbox: &mut Inbox, keeper: &Keeper) -> io::Result<Outcome> {
        let (mut machine, first) = Supervisor::begin(plan, self.won.sent, clock::now());
        self.lease.publish(&self.record, machine.standing());
        let mut actions = VecDeque::from(first);
        loop {
            while let Some(action) = actions.pop_front() {
                self.patience = machine.guard_patience();
                match self.carry_out(action, keeper) {
                    Done::Nothing => {}
                    Done::Event(event) => {
                        actions.extend(self.step(&mut machine, event, clock::now()));
                    }
                    Done::Finished(outcome) => return Ok(outcome),
                }
            }
            let mut until = machine.wake_at();
            let mut socket = Some(self.guard.as_fd());
            if self.guard.must_look() {
                let soon = clock::now() + LOOK_AGAIN;
                until = Some(until.map_or(soon, |moment| moment.min(soon)));
                socket = None;
            }
            let incoming = inbox.wait(until, socket)?;
            // Taken before the guard's reports are read: if dblock is stopped
            // behind this line, what the guard has seen until it goes on must
            // be heard before the clock is.
            let now = clock::now();
            for event in self.events(incoming) {
                actions.extend(self.step(&mut machine, event, now));
            }
        }
    }

    /// Tells the machine what happened, and the job how its lease stands now.
    fn step(&mut self, machine: &mut Supervisor, event: Event, now: Tick) -> Vec<Action> {
        let actions = machine.step(event, now);
        self.lease.publish(&self.record, machine.standing());
        actions
    }

    /// Makes the machine's events of what has come in. What the guard reports
    /// comes first: it happened before dblock could look.
    fn events(&mut self, incoming: Vec<Incoming>) -> Vec<Event> {
        let mut events = self.guard_events();
        for thing in incoming {
            match thing {
                Incoming::Signal(Sig::Child) | Incoming::Guard => {}
                Incoming::Signal(sig) => events.push(Event::Signal(sig)),
                Incoming::Answer(answer) => events.push(Event::Answer(answer.sent, answer.reply)),
                Incoming::Timer => events.push(Event::Timer),
            }
        }
        events
    }

    fn guard_events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for report in self.guard.reports() {
            match report {
                Report::Ready => {}
                Report::Started(leader) => {
                    events.push(Event::Started);
                    if self.has_foreground(leader) {
                        events.push(Event::HasForeground);
                    }
                }
                Report::NotStarted(fault) => {
                    self.take_terminal_back();
                    events.push(Event::NotStarted(fault));
                }
                // It lacked the terminal, and dblock has it: a shell gives its
                // foreground to a job in the background without a word.
                Report::Stopped(number)
                    if signals::lacks_terminal(number) && self.hand_terminal_over() =>
                {
                    events.push(Event::HasForeground);
                    self.guard.forward(Sig::Cont);
                }
                Report::Stopped(number) => {
                    self.take_terminal_back();
                    events.push(Event::JobStopped(number));
                }
                Report::Ended(ended) => events.push(Event::JobEnded(ended)),
                Report::Left => {
                    // The keyboard is for dblock again, and so for what is left.
                    self.take_terminal_back();
                    events.push(Event::JobLeft);
                }
                Report::Expired => events.push(Event::GuardExpired),
                Report::Survivors(pids) => {
                    if let Some(why) = self.naming.take() {
                        self.console.survivors(&self.won.grant.key, why, &pids);
                    }
                }
                Report::Gone => {
                    self.gone_at = Some(clock::now());
                    self.take_terminal_back();
                    events.push(Event::JobGone);
                }
                Report::Dead => events.push(Event::GuardDied),
            }
        }
        events
    }

    fn has_foreground(&self, leader: i32) -> bool {
        let terminal = self.terminal.as_ref();
        terminal.is_some_and(|tty| tty.is_in_foreground(Pid::from_raw(leader)))
    }

    fn take_terminal_back(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.guard.leader());
        }
    }

    /// Gives the job the terminal if a shell has put dblock into its
    /// foreground. Returns whether it had.
    fn hand_terminal_over(&self) -> bool {
        match (&self.terminal, self.guard.leader()) {
            (Some(terminal), Some(leader)) => terminal.hand_over(leader),
            _ => false,
        }
    }

    fn carry_out(&mut self, action: Action, keeper: &Keeper) -> Done {
        match action {
            Action::Start(deadline) => self.guard.start(self.variables(), deadline),
            Action::Extend(deadline) => self.guard.extend(deadline),
            Action::Renew => {
                keeper.ask(Call::Renew(self.won.grant.clone(), self.args.lock.ttl));
            }
            Action::Release(end) => {
                let former: Vec<Owner> = std::mem::take(&mut self.won.former);
                if !former.is_empty() {
                    keeper.ask(Call::Forget(self.won.grant.key.clone(), former));
                }
                keeper.ask(Call::Release(self.won.grant.clone(), end));
            }
            Action::Forward(Sig::Cont) | Action::Resume => {
                let handed_over = self.hand_terminal_over();
                self.guard.forward(Sig::Cont);
                if handed_over {
                    return Done::Event(Event::HasForeground);
                }
            }
            Action::Forward(sig) => self.guard.forward(sig),
            Action::Terminate(scope) => self.guard.terminate(scope),
            Action::Kill(scope) => self.guard.kill(scope, self.patience),
            Action::Name(why) => {
                self.naming = Some(why);
                self.guard.name_survivors();
            }
            Action::StopSelf(number) => {
                signals::stop_self(number);
                return Done::Event(Event::Signal(Sig::Cont));
            }
            Action::StopGroup(number) => {
                signals::stop_group(number);
                return Done::Event(Event::Signal(Sig::Cont));
            }
            Action::SignalGroup(number) => signals::send_to_group(number),
            Action::Say(note) => {
                if let Note::Renewed(_) = note {
                    self.renewals += 1;
                }
                self.console.note(&self.won.grant.key, &note);
            }
            Action::Finish(outcome) => return Done::Finished(outcome),
        }
        Done::Nothing
    }

    fn variables(&self) -> Vec<(String, String)> {
        let place = self.lease.place();
        let mut variables = nested::variables(&self.record, place);
        let mut held = self.outers.clone();
        held.push(Outer {
            key: self.record.grant.key.clone(),
            owner: self.record.grant.owner.clone(),
            place: Some(*place),
        });
        variables.push(("DBLOCK_HELD".to_owned(), nesting::encode(&held)));
        variables
    }

    /// Says how it ended, writes the report, and returns the status.
    fn conclude(&self, outcome: &Outcome, waited: Duration) -> Exit {
        let key = &self.won.grant.key;
        let (word, reason) = match outcome {
            Outcome::Ended(Ended::Exited(_)) => ("exited", None),
            Outcome::Ended(Ended::Signaled(_)) => ("signaled", None),
            Outcome::Lost(loss, Some(ended)) => (
                "lost",
                Some(format!(
                    "\"{key}\" was lost: {loss}; the job was stopped: {ended}"
                )),
            ),
            Outcome::Lost(loss, None) => (
                "lost",
                Some(format!(
                    "\"{key}\" was lost: {loss}; the job could not be killed whole"
                )),
            ),
            Outcome::Timeout(ended) => (
                "timeout",
                Some(format!(
                    "the job under \"{key}\" took longer than {} and was ended: {ended}",
                    humantime::format_duration(self.args.timeout.unwrap_or_default())
                )),
            ),
            Outcome::NotStarted(fault) => ("not-started", Some(fault.text.clone())),
            Outcome::Interrupted(_) => ("interrupted", None),
            Outcome::Unseen => (
                "error",
                Some(format!("nobody has seen how the job under \"{key}\" ended")),
            ),
            Outcome::Unproven(why) => (
                "error",
                Some(format!(
                    "\"{key}\" could not be proven, no job was started: {why}"
                )),
            ),
        };
        if let Some(reason) = &reason {
            self.console.say(reason);
        }
        let exit = Exit::after(outcome);
        let report = RunReport {
            outcome: word,
            status: exit.status(),
            signal: exit.signal(),
            key,
            slot: Some(self.won.grant.slot),
            owner: Some(&self.won.grant.owner),
            token: Some(self.won.grant.token),
            acquired_at: Some(self.acquired_at.clone()),
            waited_ms: to_millis(waited),
            held_ms: Some(to_millis(
                self.gone_at.unwrap_or_else(clock::now) - self.granted_at,
            )),
            renewals: self.renewals,
            reason,
            holder: None,
        };
        write_report(self.args, self.console, &report);
        exit
    }
}

/// What came of an action.
enum Done {
    Nothing,
    Event(Event),
    Finished(Outcome),
}

/// Says why there is no lease, writes the report, and returns the status.
fn refused(
    args: &RunArgs,
    console: Console,
    refusal: Refusal,
    waited: Duration,
) -> Result<Exit, Error> {
    let key = &args.lock.key;
    let (word, reason, exit) = match &refusal {
        Refusal::Busy(holders) => {
            let line = HeldBy { key, holders };
            console.busy(&line);
            (
                "busy",
                Some(line.to_string()),
                Exit::Code(args.lock.busy_exit),
            )
        }
        Refusal::SlotsDiffer(holders) => (
            "error",
            Some(slots_differ(&args.lock, holders).to_string()),
            Status::Config.into(),
        ),
        Refusal::Interrupted(sig) => ("interrupted", None, Exit::Signal(sig.number())),
        Refusal::Failed(error) => ("error", Some(error.to_string()), Exit::of_store(error)),
        Refusal::KeeperDied => ("error", None, Status::Internal.into()),
    };
    let holder = match &refusal {
        Refusal::Busy(holders) => holders.first(),
        _ => None,
    };
    report_refusal(
        args,
        &Refused {
            word,
            exit,
            reason,
            holder,
            waited,
        },
    );
    match refusal {
        Refusal::Failed(error) => Err(error.into()),
        Refusal::SlotsDiffer(holders) => Err(slots_differ(&args.lock, &holders)),
        _ => Ok(exit),
    }
}

/// A run that ends without a lease of its own.
pub(super) struct Refused<'a> {
    /// The report's word for it.
    pub(super) word: &'static str,
    /// How dblock ends.
    pub(super) exit: Exit,
    /// Why, for people.
    pub(super) reason: Option<String>,
    /// Who stands in the way.
    pub(super) holder: Option<&'a Holder>,
    /// How long that took.
    pub(super) waited: Duration,
}

/// Writes the report of a run that ends without a lease.
pub(super) fn report_refusal(args: &RunArgs, refused: &Refused<'_>) {
    let report = RunReport {
        outcome: refused.word,
        status: refused.exit.status(),
        signal: refused.exit.signal(),
        key: &args.lock.key,
        slot: None,
        owner: None,
        token: None,
        acquired_at: None,
        waited_ms: to_millis(refused.waited),
        held_ms: None,
        renewals: 0,
        reason: refused.reason.clone(),
        holder: refused.holder.map(|row| StatusRow::new(row, &[])),
    };
    write_report(args, super::console(&args.store), &report);
}

/// Writes the report. A report that cannot be written does not change what
/// happened to the job.
fn write_report(args: &RunArgs, console: Console, report: &RunReport<'_>) {
    let Some(path) = &args.report else {
        return;
    };
    let written = output::json(report)
        .map_err(io::Error::from)
        .and_then(|text| {
            // A pipe that nobody reads must not keep dblock here.
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(path)?;
            file.write_all(text.as_bytes())
        });
    if let Err(error) = written {
        console.say(&format_args!(
            "warning: cannot write the report {}: {error}",
            path.display()
        ));
    }
}
