//! Programs that misbehave, for a plain Debian: shell and perl-base. Each ends
//! by itself within a minute, whatever becomes of the test.

/// Ignores TERM and appends the boot-time clock and the time of day, both in
/// milliseconds, to the file that is its first argument, every 10 ms.
pub(crate) const STAMP: &str = r#"
use Time::HiRes qw(clock_gettime sleep);
$SIG{TERM} = 'IGNORE';
open(F, '>>', $ARGV[0]) or die;
for (1 .. 6000) {
    syswrite(F, sprintf("%d %d\n", clock_gettime(7) * 1000, clock_gettime(0) * 1000));
    sleep(0.01);
}
"#;

/// Starts its like in a new session every few milliseconds and ends itself, so
/// that whoever looks at it sees a process that is gone already.
pub(crate) const HOPPER: &str = r#"
use POSIX; use Time::HiRes qw(time sleep);
$SIG{TERM} = 'IGNORE';
my $end = time + 30;
while (time < $end) {
    my $child = fork;
    if (!defined $child) { sleep(0.05); next }
    exit if $child;
    POSIX::setsid();
    sleep(0.002);
}
"#;

/// A chain of processes, each the child of the one before, as many as the
/// first argument says; the last one makes the file that is the second.
pub(crate) const CHAIN: &str = r#"
use POSIX;
my ($left, $file) = @ARGV;
while (--$left > 0) {
    my $child = fork;
    die unless defined $child;
    if ($child) { waitpid($child, 0); exit }
    POSIX::setsid() if $left % 7 == 0;
}
open(F, '>', $file) or die;
close F;
sleep 60;
"#;

/// Leaves the group, but has a child in it that has ended and that it never
/// reaps; prints when it is so far.
pub(crate) const ZOMBIE_KEEPER: &str = r#"
use POSIX;
$| = 1;
my $zombie = fork; die unless defined $zombie;
POSIX::_exit(0) if $zombie == 0;
POSIX::setsid();
# Waits until the child has ended, but leaves it unreaped.
select(undef, undef, undef, 0.01) until do {
    open(F, '<', "/proc/$zombie/stat") or die; my $line = <F>; $line =~ /\) Z /;
};
print "$zombie\n";
open(STDOUT, '>', '/dev/null');
sleep 60;
"#;

/// Ends its first thread and works on with another one, so that the kernel
/// shows it as a zombie, until the file that is its argument is there. For a C
/// compiler, which Rust needs anyway.
pub(crate) const HEADLESS: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static void *work(void *gate) {
    for (int i = 0; i < 6000 && access(gate, F_OK) != 0; i++) usleep(10000);
    exit(0);
}
int main(int count, char **arguments) {
    pthread_t thread;
    signal(SIGTERM, SIG_IGN);
    if (pthread_create(&thread, 0, work, arguments[1])) return 1;
    pthread_exit(0);
}
"#;

/// Counts the signals that it is sent, and prints the name of each. USR2 ends
/// it with status 5 if it comes after INT; that is how a test says that it
/// has sent all.
pub(crate) const COUNTER: &str = r#"
$| = 1;
my @names = qw(HUP INT QUIT USR1 USR2 ALRM TERM WINCH TSTP CONT);
my $last = '';
for my $name (@names) {
    $SIG{$name} = sub {
        syswrite(STDOUT, "$name\n");
        exit 5 if $name eq 'USR2' && $last eq 'INT';
        $last = $name;
    };
}
syswrite(STDOUT, "$$\n");
for (1 .. 6000) { select(undef, undef, undef, 0.01) }
"#;

/// As many busy loops as the first argument says, until the file that is the
/// second one is there; then it ends with status 5.
pub(crate) const BUSY: &str = r#"
my ($loops, $gate) = @ARGV;
my $end = time + 120;
my @children;
for (1 .. $loops) {
    my $child = fork;
    die unless defined $child;
    if (!$child) { while (time < $end) { 1 for 1 .. 10000 } exit }
    push @children, $child;
}
select(undef, undef, undef, 0.05) until -e $gate || time >= $end;
kill 'KILL', @children;
1 while wait != -1;
exit 5;
"#;

/// Quotes a text for the shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the shell command that runs one of the programs above.
pub(crate) fn perl(program: &str, arguments: &[&str]) -> String {
    let words = arguments.iter().map(|word| quoted(word));
    let words: Vec<_> = std::iter::once(quoted(program)).chain(words).collect();
    format!("perl -e {}", words.join(" "))
}
