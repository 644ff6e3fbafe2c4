//! A job in a pipeline: somebody else in it may need the terminal, too.

use super::*;

/// Shows what comes in, like a pager, and waits for a line from the terminal.
const PAGER: &str = "exec 3<&0; cat <&3 & read x </dev/tty; echo pager:$x; wait";

/// Runs a job with its output piped into a program, and waits until it has
/// begun.
#[track_caller]
fn piped(desk: &mut Desk, job: &str, into: &str) -> Begun {
    let run = desk.run("", job);
    let into = desk.script(into);
    let line = format!("set -o pipefail; {run} | sh {}", into.display());
    desk.terminal.line(&line);
    desk.begun()
}

#[test]
fn b1_a_pager_behind_the_job_reads_the_terminal() {
    let mut desk = Desk::new(BASH);
    let go = desk.place.file("go");
    piped(&mut desk, &waiting(&[&go]), PAGER);
    desk.terminal.line("next");
    desk.terminal.expect("pager:next");
    fs::write(&go, "").expect("the file can be made");
    desk.over(6);
    desk.terminal.exit();
}

#[test]
fn b1_a_job_in_a_pipeline_reads_the_terminal() {
    let mut desk = Desk::new(BASH);
    piped(&mut desk, READ, "cat");
    desk.terminal.line("hello");
    desk.terminal.expect("got:hello");
    desk.over(0);
    desk.terminal.exit();
}

#[test]
fn b1_a_job_behind_a_pipe_reads_the_terminal() {
    let mut desk = Desk::new(BASH);
    let run = desk.run("", "read x </dev/tty; echo got:$x");
    desk.terminal.line(&format!("true | {run}"));
    desk.begun();
    desk.terminal.line("hello");
    desk.terminal.expect("got:hello");
    desk.over(0);
    desk.terminal.exit();
}

#[test]
fn b1_a_job_in_a_pipeline_sets_the_terminal() {
    let mut desk = Desk::new(BASH);
    desk.terminal
        .command("dblock run --key k -- stty -F /dev/tty -echoctl | cat");
    desk.left(0);
    let set = desk.terminal.command("stty -a");
    assert!(set.contains("-echoctl"), "{}", desk.terminal.facts());
    desk.terminal.exit();
}

#[test]
fn b1_ctrl_c_ends_a_pipeline() {
    let mut desk = Desk::new(BASH);
    piped(&mut desk, SLEEP, "exec cat");
    desk.terminal.key(CTRL_C);
    desk.over(130);
    desk.terminal.exit();
}

/// A job that has taken the foreground gets what the keyboard sends, and what
/// surrounds dblock is to end with it.
#[test]
fn b1_ctrl_c_after_reading_ends_a_script_around_a_pipeline() {
    let mut desk = Desk::new(BASH);
    let run = desk.run("", "read x; echo got:$x; exec sleep 100");
    let script = desk.script(&format!("{run} | cat\necho not\"\"reached"));
    desk.terminal.line(&format!("bash {}", script.display()));
    let begun = desk.begun();
    desk.terminal.wait_for_foreground(begun.job);
    desk.terminal.line("hello");
    desk.terminal.expect("got:hello");
    desk.terminal.key(CTRL_C);
    let shown = desk.over(130);
    assert!(!shown.contains("notreached"), "{shown}");
    desk.terminal.exit();
}

#[test]
fn b1_ctrl_z_stops_a_pipeline_and_fg_goes_on() {
    let mut desk = Desk::new(BASH);
    let go = desk.place.file("go");
    let begun = piped(&mut desk, &waiting(&[&go]), "exec cat");
    desk.suspend(begun);
    desk.terminal.line("fg");
    desk.wait_until_it_goes_on(begun.job);
    fs::write(&go, "").expect("the file can be made");
    desk.over(6);
    desk.terminal.exit();
}
