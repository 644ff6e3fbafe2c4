//! The way to a grant, for `run` and `acquire`: the hands of
//! [`crate::acquisition`].

use std::io;

use crate::acquisition::{Acquisition, Refusal, Step, Wanted, Won};
use crate::cli::LockArgs;
use crate::clock;
use crate::inbox::{Inbox, Incoming};
use crate::keeper::Keeper;
use crate::output::{Console, HeldBy};
use crate::signals::{self, Sig};

/// How long dblock waits for the keeper to say goodbye to the server.
const GOODBYE: std::time::Duration = std::time::Duration::from_millis(200);

/// Returns how long the arguments allow to wait.
pub(super) fn patience(args: &LockArgs) -> crate::acquisition::Patience {
    use crate::acquisition::Patience;
    match args.wait {
        None => Patience::None,
        Some(None) => Patience::Forever,
        Some(Some(length)) => Patience::For(length),
    }
}

/// Takes the lock, or returns why not.
pub(super) fn obtain(
    wanted: Wanted,
    inbox: &mut Inbox,
    keeper: &mut Keeper,
    console: Console,
) -> io::Result<Result<Won, Refusal>> {
    let key = wanted.key.clone();
    let (mut machine, mut step) = Acquisition::begin(wanted, fastrand::Rng::new(), clock::now());
    let mut waiting = false;
    loop {
        match step {
            Step::Ask(call) => keeper.ask(call),
            Step::Cancel => keeper.cancel(),
            Step::Wait => {}
            Step::Won(won) => return Ok(Ok(won)),
            Step::End(refusal) => return Ok(Err(refusal)),
        }
        if !waiting && !machine.holders().is_empty() {
            waiting = true;
            let holders = machine.holders();
            console.tell(&format_args!("{}; waiting", HeldBy { key: &key, holders }));
        }
        step = Step::Wait;
        for incoming in inbox.wait(machine.wake_at(), None)? {
            let next = match incoming {
                Incoming::Signal(sig @ Sig::Tstp) => {
                    signals::stop_self(sig.number());
                    Step::Wait
                }
                Incoming::Signal(sig) if sig.ends_by_default() => machine.signal(sig, clock::now()),
                Incoming::Signal(_) | Incoming::Guard => Step::Wait,
                Incoming::Answer(answer) => machine.answer(answer.sent, answer.reply, clock::now()),
                Incoming::Timer => machine.timer(clock::now()),
            };
            // At most one event of a batch has a consequence: there is one
            // call under way, and an end is an end.
            if !matches!(next, Step::Wait) {
                step = next;
            }
            if matches!(step, Step::End(_) | Step::Won(_)) {
                break;
            }
        }
    }
}

/// Lets the keeper finish what it was given and say goodbye to the server, for
/// a moment.
pub(super) fn dismiss(keeper: Keeper, inbox: &mut Inbox) {
    drop(keeper);
    let limit = clock::now() + GOODBYE;
    while clock::now() < limit {
        let Ok(happened) = inbox.wait(Some(limit), None) else {
            return;
        };
        let gone = happened.iter().any(|incoming| {
            matches!(incoming, Incoming::Answer(answer)
                if matches!(answer.reply, crate::keeper::Reply::Gone))
        });
        if gone {
            return;
        }
    }
}
