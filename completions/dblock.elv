
use builtin;
use str;

set edit:completion:arg-completer[dblock] = {|@words|
    fn spaces {|n|
        builtin:repeat $n ' ' | str:join ''
    }
    fn cand {|text desc|
        edit:complex-candidate $text &display=$text' '(spaces (- 14 (wcswidth $text)))$desc
    }
    var command = 'dblock'
    for word $words[1..-1] {
        if (str:has-prefix $word '-') {
            break
        }
        set command = $command';'$word
    }
    var completions = [
        &'dblock'= {
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
            cand run 'Run a command while holding a lock'
            cand acquire 'Take a lock by hand and print its owner id'
            cand renew 'Extend a lease that was taken by hand'
            cand release 'Give a lease back'
            cand check 'Ask whether a lease is still held'
            cand status 'Show who holds which locks'
            cand force-release 'Take a lock away from its holder'
            cand block 'Refuse new grants of a key, for maintenance'
            cand unblock 'Allow grants of a blocked key again'
            cand init 'Create the tables, or check that they are right'
            cand completions 'Print completions for a shell'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'dblock;run'= {
            cand -k 'The lock''s key: 1 to 255 bytes of UTF-8'
            cand --key 'The lock''s key: 1 to 255 bytes of UTF-8'
            cand -t 'Length of the lease, 1s to 30d; a bare number is seconds'
            cand --ttl 'Length of the lease, 1s to 30d; a bare number is seconds'
            cand -w 'Wait up to D if the key is busy; without D, for ever'
            cand --wait 'Wait up to D if the key is busy; without D, for ever'
            cand -E 'Exit with this status if the key is busy'
            cand --busy-exit 'Exit with this status if the key is busy'
            cand --slots 'Let N holders have the key at once; all who use the key must say the same'
            cand --slot-by 'With --slots, take only the slot that VALUE is hashed to'
            cand --at-least 'Keep the key closed for at least D after the grant, even if the job ends sooner'
            cand --once-per 'Skip if a run with this option was granted less than D ago and succeeded'
            cand --lock-delay 'If the lease is lost, let nobody have the key for a further D'
            cand --wake 'How to learn that the key is free: woken by the server if possible, or by looking'
            cand --note 'A text that status shows, such as the address of a CI job'
            cand --kill-after 'Kill the job D after it was asked to end; default: a quarter of the TTL, at most 10s'
            cand --timeout 'End the job if it takes longer than D; status 124'
            cand --leftovers 'What to do with processes that the job leaves in its process group when its first process ends'
            cand --report 'Write one JSON object about the run to FILE'
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand -n 'Give up at once if the key is busy (this is the default)'
            cand --no-wait 'Give up at once if the key is busy (this is the default)'
            cand --reentrant 'If the job that this runs in holds the key, run the command under that lease'
            cand --pass-credentials 'Leave the variables with dblock''s credentials in the job''s environment'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dblock;acquire'= {
            cand -k 'The lock''s key: 1 to 255 bytes of UTF-8'
            cand --key 'The lock''s key: 1 to 255 bytes of UTF-8'
            cand -t 'Length of the lease, 1s to 30d; a bare number is seconds'
            cand --ttl 'Length of the lease, 1s to 30d; a bare number is seconds'
            cand -w 'Wait up to D if the key is busy; without D, for ever'
            cand --wait 'Wait up to D if the key is busy; without D, for ever'
            cand -E 'Exit with this status if the key is busy'
            cand --busy-exit 'Exit with this status if the key is busy'
            cand --slots 'Let N holders have the key at once; all who use the key must say the same'
            cand --slot-by 'With --slots, take only the slot that VALUE is hashed to'
            cand --at-least 'Keep the key closed for at least D after the grant, even if the job ends sooner'
            cand --once-per 'Skip if a run with this option was granted less than D ago and succeeded'
            cand --lock-delay 'If the lease is lost, let nobody have the key for a further D'
            cand --wake 'How to learn that the key is free: woken by the server if possible, or by looking'
            cand --note 'A text that status shows, such as the address of a CI job'
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand -n 'Give up at once if the key is busy (this is the default)'
            cand --no-wait 'Give up at once if the key is busy (this is the default)'
            cand --json 'Print a JSON object instead of the owner id'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dblock;renew'= {
            cand -k 'The lock''s key'
            cand --key 'The lock''s key'
            cand -o 'The owner id that acquire printed'
            cand --owner 'The owner id that acquire printed'
            cand -t 'New length of the lease from now on, 1s to 30d; default: as before'
            cand --ttl 'New length of the lease from now on, 1s to 30d; default: as before'
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dblock;release'= {
            cand -k 'The lock''s key'
            cand --key 'The lock''s key'
            cand -o 'The owner id that acquire printed'
            cand --owner 'The owner id that acquire printed'
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'dblock;check'= {
            cand -k 'The lock''s key; default: that of the job it is called in'
            cand --key 'The lock''s key; default: that of the job it is called in'
            cand -o 'The owner id; default: that of the job it is called in'
            cand --owner 'The owner id; default: that of the job it is called in'
            cand --min-left 'Answer no if less than D of the lease is left'
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand --print-sql 'If it is held, print the SQL statement that fails in a transaction unless it still is'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dblock;status'= {
            cand -k 'Show this key only; may be repeated'
            cand --key 'Show this key only; may be repeated'
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand --json 'Print a JSON array'
            cand --watch 'Show it again every second until Ctrl-C'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dblock;force-release'= {
            cand -k 'The lock''s key, as an option'
            cand --key 'The lock''s key, as an option'
            cand --slot 'Only the holder of this slot'
            cand -o 'Only this holder, so that a newer one cannot be hit'
            cand --owner 'Only this holder, so that a newer one cannot be hit'
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand -y 'Do not ask'
            cand --yes 'Do not ask'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dblock;block'= {
            cand -k 'The lock''s key, as an option'
            cand --key 'The lock''s key, as an option'
            cand --for 'End by itself after D; without it, with ''dblock unblock'' only'
            cand --reason 'Why, for those who find the key busy'
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dblock;unblock'= {
            cand -k 'The lock''s key, as an option'
            cand --key 'The lock''s key, as an option'
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'dblock;init'= {
            cand --url 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH'
            cand --config 'Read this configuration file instead of the usual ones'
            cand --connect-timeout 'Time for a connection, with all its phases, while no lease is held; default: 5s'
            cand --print-sql 'Print the statements and the least grants instead of running them'
            cand --local 'Use a file of this user; it excludes this user''s processes on this host only'
            cand -q 'Say nothing about a busy key'
            cand --quiet 'Say nothing about a busy key'
            cand -v 'Tell what happens'
            cand --verbose 'Tell what happens'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dblock;completions'= {
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'dblock;help'= {
            cand run 'Run a command while holding a lock'
            cand acquire 'Take a lock by hand and print its owner id'
            cand renew 'Extend a lease that was taken by hand'
            cand release 'Give a lease back'
            cand check 'Ask whether a lease is still held'
            cand status 'Show who holds which locks'
            cand force-release 'Take a lock away from its holder'
            cand block 'Refuse new grants of a key, for maintenance'
            cand unblock 'Allow grants of a blocked key again'
            cand init 'Create the tables, or check that they are right'
            cand completions 'Print completions for a shell'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'dblock;help;run'= {
        }
        &'dblock;help;acquire'= {
        }
        &'dblock;help;renew'= {
        }
        &'dblock;help;release'= {
        }
        &'dblock;help;check'= {
        }
        &'dblock;help;status'= {
        }
        &'dblock;help;force-release'= {
        }
        &'dblock;help;block'= {
        }
        &'dblock;help;unblock'= {
        }
        &'dblock;help;init'= {
        }
        &'dblock;help;completions'= {
        }
        &'dblock;help;help'= {
        }
    ]
    $completions[$command]
}
