# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_dblock_global_optspecs
    string join \n h/help V/version
end

function __fish_dblock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_dblock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_dblock_using_subcommand
    set -l cmd (__fish_dblock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c dblock -n "__fish_dblock_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dblock -n "__fish_dblock_needs_command" -s V -l version -d 'Print version'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "run" -d 'Run a command while holding a lock'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "acquire" -d 'Take a lock by hand and print its owner id'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "renew" -d 'Extend a lease that was taken by hand'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "release" -d 'Give a lease back'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "check" -d 'Ask whether a lease is still held'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "status" -d 'Show who holds which locks'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "force-release" -d 'Take a lock away from its holder'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "block" -d 'Refuse new grants of a key, for maintenance'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "unblock" -d 'Allow grants of a blocked key again'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "init" -d 'Create the tables, or check that they are right'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "completions" -d 'Print completions for a shell'
complete -c dblock -n "__fish_dblock_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dblock -n "__fish_dblock_using_subcommand run" -s k -l key -d 'The lock\'s key: 1 to 255 bytes of UTF-8' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -s t -l ttl -d 'Length of the lease, 1s to 30d; a bare number is seconds' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -s w -l wait -d 'Wait up to D if the key is busy; without D, for ever' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -s E -l busy-exit -d 'Exit with this status if the key is busy' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l slots -d 'Let N holders have the key at once; all who use the key must say the same' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l slot-by -d 'With --slots, take only the slot that VALUE is hashed to' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l at-least -d 'Keep the key closed for at least D after the grant, even if the job ends sooner' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l once-per -d 'Skip if a run with this option was granted less than D ago and succeeded' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l lock-delay -d 'If the lease is lost, let nobody have the key for a further D' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l wake -d 'How to learn that the key is free: woken by the server if possible, or by looking' -r -f -a "auto\t'Sleep in the server\'s queue where there is one'
poll\t'Look now and then'"
complete -c dblock -n "__fish_dblock_using_subcommand run" -l note -d 'A text that status shows, such as the address of a CI job' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l kill-after -d 'Kill the job D after it was asked to end; default: a quarter of the TTL, at most 10s' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l timeout -d 'End the job if it takes longer than D; status 124' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l leftovers -d 'What to do with processes that the job leaves in its process group when its first process ends' -r -f -a "wait\t'Keep the lock until they end'
kill\t'End them'
leave\t'Free the lock and let them be'"
complete -c dblock -n "__fish_dblock_using_subcommand run" -l report -d 'Write one JSON object about the run to FILE' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand run" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand run" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand run" -s n -l no-wait -d 'Give up at once if the key is busy (this is the default)'
complete -c dblock -n "__fish_dblock_using_subcommand run" -l reentrant -d 'If the job that this runs in holds the key, run the command under that lease'
complete -c dblock -n "__fish_dblock_using_subcommand run" -l pass-credentials -d 'Leave the variables with dblock\'s credentials in the job\'s environment'
complete -c dblock -n "__fish_dblock_using_subcommand run" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand run" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand run" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -s k -l key -d 'The lock\'s key: 1 to 255 bytes of UTF-8' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -s t -l ttl -d 'Length of the lease, 1s to 30d; a bare number is seconds' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -s w -l wait -d 'Wait up to D if the key is busy; without D, for ever' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -s E -l busy-exit -d 'Exit with this status if the key is busy' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l slots -d 'Let N holders have the key at once; all who use the key must say the same' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l slot-by -d 'With --slots, take only the slot that VALUE is hashed to' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l at-least -d 'Keep the key closed for at least D after the grant, even if the job ends sooner' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l once-per -d 'Skip if a run with this option was granted less than D ago and succeeded' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l lock-delay -d 'If the lease is lost, let nobody have the key for a further D' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l wake -d 'How to learn that the key is free: woken by the server if possible, or by looking' -r -f -a "auto\t'Sleep in the server\'s queue where there is one'
poll\t'Look now and then'"
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l note -d 'A text that status shows, such as the address of a CI job' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -s n -l no-wait -d 'Give up at once if the key is busy (this is the default)'
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l json -d 'Print a JSON object instead of the owner id'
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dblock -n "__fish_dblock_using_subcommand renew" -s k -l key -d 'The lock\'s key' -r
complete -c dblock -n "__fish_dblock_using_subcommand renew" -s o -l owner -d 'The owner id that acquire printed' -r
complete -c dblock -n "__fish_dblock_using_subcommand renew" -s t -l ttl -d 'New length of the lease from now on, 1s to 30d; default: as before' -r
complete -c dblock -n "__fish_dblock_using_subcommand renew" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand renew" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand renew" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand renew" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand renew" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand renew" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand renew" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dblock -n "__fish_dblock_using_subcommand release" -s k -l key -d 'The lock\'s key' -r
complete -c dblock -n "__fish_dblock_using_subcommand release" -s o -l owner -d 'The owner id that acquire printed' -r
complete -c dblock -n "__fish_dblock_using_subcommand release" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand release" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand release" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand release" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand release" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand release" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand release" -s h -l help -d 'Print help'
complete -c dblock -n "__fish_dblock_using_subcommand check" -s k -l key -d 'The lock\'s key; default: that of the job it is called in' -r
complete -c dblock -n "__fish_dblock_using_subcommand check" -s o -l owner -d 'The owner id; default: that of the job it is called in' -r
complete -c dblock -n "__fish_dblock_using_subcommand check" -l min-left -d 'Answer no if less than D of the lease is left' -r
complete -c dblock -n "__fish_dblock_using_subcommand check" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand check" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand check" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand check" -l print-sql -d 'If it is held, print the SQL statement that fails in a transaction unless it still is'
complete -c dblock -n "__fish_dblock_using_subcommand check" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand check" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand check" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dblock -n "__fish_dblock_using_subcommand status" -s k -l key -d 'Show this key only; may be repeated' -r
complete -c dblock -n "__fish_dblock_using_subcommand status" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand status" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand status" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand status" -l json -d 'Print a JSON array'
complete -c dblock -n "__fish_dblock_using_subcommand status" -l watch -d 'Show it again every second until Ctrl-C'
complete -c dblock -n "__fish_dblock_using_subcommand status" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand status" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand status" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -s k -l key -d 'The lock\'s key, as an option' -r
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -l slot -d 'Only the holder of this slot' -r
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -s o -l owner -d 'Only this holder, so that a newer one cannot be hit' -r
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -s y -l yes -d 'Do not ask'
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand force-release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dblock -n "__fish_dblock_using_subcommand block" -s k -l key -d 'The lock\'s key, as an option' -r
complete -c dblock -n "__fish_dblock_using_subcommand block" -l for -d 'End by itself after D; without it, with \'dblock unblock\' only' -r
complete -c dblock -n "__fish_dblock_using_subcommand block" -l reason -d 'Why, for those who find the key busy' -r
complete -c dblock -n "__fish_dblock_using_subcommand block" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand block" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand block" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand block" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand block" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand block" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand block" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dblock -n "__fish_dblock_using_subcommand unblock" -s k -l key -d 'The lock\'s key, as an option' -r
complete -c dblock -n "__fish_dblock_using_subcommand unblock" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand unblock" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand unblock" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand unblock" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand unblock" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand unblock" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand unblock" -s h -l help -d 'Print help'
complete -c dblock -n "__fish_dblock_using_subcommand init" -l url -d 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH' -r
complete -c dblock -n "__fish_dblock_using_subcommand init" -l config -d 'Read this configuration file instead of the usual ones' -r -F
complete -c dblock -n "__fish_dblock_using_subcommand init" -l connect-timeout -d 'Time for a connection, with all its phases, while no lease is held; default: 5s' -r
complete -c dblock -n "__fish_dblock_using_subcommand init" -l print-sql -d 'Print the statements and the least grants instead of running them'
complete -c dblock -n "__fish_dblock_using_subcommand init" -l local -d 'Use a file of this user; it excludes this user\'s processes on this host only'
complete -c dblock -n "__fish_dblock_using_subcommand init" -s q -l quiet -d 'Say nothing about a busy key'
complete -c dblock -n "__fish_dblock_using_subcommand init" -s v -l verbose -d 'Tell what happens'
complete -c dblock -n "__fish_dblock_using_subcommand init" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dblock -n "__fish_dblock_using_subcommand completions" -s h -l help -d 'Print help'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "run" -d 'Run a command while holding a lock'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "acquire" -d 'Take a lock by hand and print its owner id'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "renew" -d 'Extend a lease that was taken by hand'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "release" -d 'Give a lease back'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "check" -d 'Ask whether a lease is still held'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "status" -d 'Show who holds which locks'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "force-release" -d 'Take a lock away from its holder'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "block" -d 'Refuse new grants of a key, for maintenance'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "unblock" -d 'Allow grants of a blocked key again'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "init" -d 'Create the tables, or check that they are right'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "completions" -d 'Print completions for a shell'
complete -c dblock -n "__fish_dblock_using_subcommand help; and not __fish_seen_subcommand_from run acquire renew release check status force-release block unblock init completions help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
