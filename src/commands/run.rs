//! `dblock run`: the hands of [`crate::supervise`]. It makes no decision.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use anyhow::{Context, Error};

use super::obtain::{dismiss, obtain, patience};
use crate::acquisition::{Refusal, Wanted, Won};
use crate::child::{Change, Job, JobSpec};
use crate::cli::RunArgs;
use crate::clock::{self, Tick};
use crate::config;
use crate::exit::{Exit, Status};
use crate::inbox::{Inbox, Incoming};
use crate::keeper::{Call, Keeper};
use crate::lease::Timeline;
use crate::lock::{Grant, Kind, Owner, Ttl};
use crate::output::{self, Console, HeldBy, RunReport, StatusRow, millis};
use crate::signals::{self, Relay, Sig};
use crate::store::Limits;
use crate::supervise::{Action, Ended, Event, Note, Outcome, Supervisor};

/// Pause between looks at a group whose first process has ended: not each end
/// of the others raises SIGCHLD here.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(super) fn run(args: &RunArgs) -> Result<Exit, Error> {
    let console = super::console(&args.store);
    let line = Timeline::new(args.lock.ttl, args.kill_after)?;
    // Before any thread, connection or child: from here on no signal is lost.
    let relay = Relay::install().context("cannot install signal handlers")?;
    let settings = config::settings(&args.store)?;
    let mut inbox = Inbox::new(relay).context("cannot wait for events")?;
    let store = settings.endpoint.open(Limits {
        connect: settings.connect_timeout,
        call: line.call_limit().min(settings.connect_timeout),
        idle: args.lock.ttl.get(),
    });
    let mut keeper = Keeper::start(store, inbox.postbox()).context("cannot start a thread")?;
    let started = clock::now();
    let wanted = Wanted {
        key: args.lock.key.clone(),
        ttl: args.lock.ttl,
        kind: Kind::Run,
        claimant: config::claimant(&args.command, args.lock.note.clone()),
        patience: patience(&args.lock),
        contact: settings.connect_timeout,
    };
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
                won,
                granted_at: clock::now(),
                acquired_at: output::time_of_day(),
                renewals: 0,
                job: None,
            };
            let outcome = hands.supervise(line, &mut inbox, &keeper)?;
            dismiss(keeper, &mut inbox);
            Ok(hands.conclude(&outcome, waited))
        }
        Err(refusal) => {
            dismiss(keeper, &mut inbox);
            refused(args, console, refusal, clock::now() - started)
        }
    }
}

/// What the actions are carried out with.
struct Hands<'a> {
    args: &'a RunArgs,
    console: Console,
    won: Won,
    granted_at: Tick,
    acquired_at: String,
    renewals: u64,
    job: Option<Job>,
}

impl Hands<'_> {
    fn supervise(
        &mut self,
        line: Timeline,
        inbox: &mut Inbox,
        keeper: &Keeper,
    ) -> io::Result<Outcome> {
        let (mut machine, first) =
            Supervisor::begin(line, self.args.timeout, self.won.sent, clock::now());
        let mut actions = VecDeque::from(first);
        loop {
            while let Some(action) = actions.pop_front() {
                match self.carry_out(action, inbox, keeper) {
                    Done::Nothing => {}
                    Done::Event(event) => actions.extend(machine.step(event, clock::now())),
                    Done::Finished(outcome) => return Ok(outcome),
                }
            }
            let mut until = machine.wake_at();
            if self.job.as_ref().is_some_and(Job::has_leftovers) {
                let soon = clock::now() + LOOK_AGAIN;
                until = Some(until.map_or(soon, |moment| moment.min(soon)));
            }
            for event in self.events(inbox.wait(until)?)? {
                actions.extend(machine.step(event, clock::now()));
            }
        }
    }

    /// Makes the machine's events of what has come in.
    fn events(&mut self, incoming: Vec<Incoming>) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        for thing in incoming {
            match thing {
                Incoming::Signal(Sig::Child) => events.extend(self.job_changes()?),
                Incoming::Signal(sig) => events.push(Event::Signal(sig)),
                Incoming::Answer(answer) => events.push(Event::Answer(answer.sent, answer.reply)),
                Incoming::Timer => {
                    if self.job.as_ref().is_some_and(Job::has_leftovers) {
                        events.extend(self.job_changes()?);
                    }
                    events.push(Event::Timer);
                }
            }
        }
        Ok(events)
    }

    fn job_changes(&mut self) -> io::Result<Vec<Event>> {
        let Some(job) = &mut self.job else {
            return Ok(Vec::new());
        };
        let changes = job.changes()?.into_iter();
        Ok(changes
            .map(|change| match change {
                Change::Stopped => Event::JobStopped,
                Change::Ended(ended) => Event::JobEnded(ended),
                Change::Gone => Event::JobGone,
            })
            .collect())
    }

    fn carry_out(&mut self, action: Action, inbox: &Inbox, keeper: &Keeper) -> Done {
        match (action, &self.job) {
            (Action::Start, _) => match Job::start(&self.job_spec(inbox)) {
                Ok(job) => {
                    self.job = Some(job);
                    return Done::Event(Event::Started);
                }
                Err(fault) => return Done::Event(Event::NotStarted(fault)),
            },
            (Action::Renew, _) => {
                keeper.ask(Call::Renew(self.won.grant.clone(), self.args.lock.ttl));
            }
            (Action::Release, _) => {
                let former: Vec<Owner> = std::mem::take(&mut self.won.former);
                if !former.is_empty() {
                    keeper.ask(Call::Forget(self.won.grant.key.clone(), former));
                }
                keeper.ask(Call::Release(self.won.grant.clone()));
            }
            (Action::Forward(sig), Some(job)) => job.forward(sig),
            (Action::Terminate, Some(job)) => job.terminate(),
            (Action::Kill, Some(job)) => job.kill(),
            (Action::Resume, Some(job)) => job.resume(),
            (Action::StopSelf, _) => {
                signals::stop_self();
                return Done::Event(Event::Signal(Sig::Cont));
            }
            (Action::Say(note), _) => {
                if let Note::Renewed(_) = note {
                    self.renewals += 1;
                }
                self.console.note(&self.won.grant.key, &note);
            }
            (Action::Finish(outcome), _) => return Done::Finished(outcome),
            (Action::Forward(_) | Action::Terminate | Action::Kill | Action::Resume, None) => {}
        }
        Done::Nothing
    }

    fn job_spec(&self, inbox: &Inbox) -> JobSpec {
        let Grant {
            key,
            slot,
            owner,
            token,
        } = &self.won.grant;
        let (command, arguments) = match self.args.command.split_first() {
            Some((command, arguments)) => (command.clone(), arguments.to_vec()),
            None => Default::default(),
        };
        let ttl: Ttl = self.args.lock.ttl;
        JobSpec {
            command,
            arguments,
            set: vec![
                ("DBLOCK_KEY", key.to_string()),
                ("DBLOCK_SLOT", slot.to_string()),
                ("DBLOCK_OWNER", owner.to_string()),
                ("DBLOCK_TOKEN", token.to_string()),
                ("DBLOCK_TTL_MS", ttl.as_millis().to_string()),
            ],
            remove: if self.args.pass_credentials {
                Vec::new()
            } else {
                config::CREDENTIALS.to_vec()
            },
            path: config::search_path(),
            inherited: inbox.inherited(),
        }
    }

    /// Says how it ended, writes the report, and returns the status.
    fn conclude(&self, outcome: &Outcome, waited: Duration) -> Exit {
        let key = &self.won.grant.key;
        let (word, reason) = match outcome {
            Outcome::Ended(Ended::Exited(_)) => ("exited", None),
            Outcome::Ended(Ended::Signaled(_)) => ("signaled", None),
            Outcome::Lost(loss, ended) => (
                "lost",
                Some(format!(
                    "\"{key}\" was lost: {loss}; the job was stopped: {ended}"
                )),
            ),
            Outcome::Timeout(ended) => (
                "timeout",
                Some(format!(
                    "the job took longer than --timeout allows and was ended: {ended}"
                )),
            ),
            Outcome::NotStarted(fault) => ("not-started", Some(fault.text.clone())),
            Outcome::Interrupted(_) => ("interrupted", None),
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
            waited_ms: millis(waited),
            held_ms: Some(millis(clock::now() - self.granted_at)),
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
        Refusal::Interrupted(sig) => ("interrupted", None, Exit::Signal(sig.number())),
        Refusal::Failed(error) => ("error", Some(error.to_string()), Exit::of_store(error)),
        Refusal::KeeperDied => ("error", None, Status::Internal.into()),
    };
    let holder = match &refusal {
        Refusal::Busy(holders) => holders.first().map(StatusRow::new),
        _ => None,
    };
    let report = RunReport {
        outcome: word,
        status: exit.status(),
        signal: exit.signal(),
        key,
        slot: None,
        owner: None,
        token: None,
        acquired_at: None,
        waited_ms: millis(waited),
        held_ms: None,
        renewals: 0,
        reason,
        holder,
    };
    write_report(args, console, &report);
    match refusal {
        Refusal::Failed(error) => Err(error.into()),
        _ => Ok(exit),
    }
}

/// Writes the report. A report that cannot be written does not change what
/// happened to the job.
fn write_report(args: &RunArgs, console: Console, report: &RunReport<'_>) {
    let Some(path) = &args.report else {
        return;
    };
    let written = output::json(report)
        .map_err(io::Error::from)
        .and_then(|text| std::fs::write(path, text));
    if let Err(error) = written {
        console.say(&format_args!(
            "warning: cannot write the report {}: {error}",
            path.display()
        ));
    }
}
