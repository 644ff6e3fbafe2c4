
using namespace System.Management.Automation
using namespace System.Management.Automation.Language

Register-ArgumentCompleter -Native -CommandName 'dblock' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $commandElements = $commandAst.CommandElements
    $command = @(
        'dblock'
        for ($i = 1; $i -lt $commandElements.Count; $i++) {
            $element = $commandElements[$i]
            if ($element -isnot [StringConstantExpressionAst] -or
                $element.StringConstantType -ne [StringConstantType]::BareWord -or
                $element.Value.StartsWith('-') -or
                $element.Value -eq $wordToComplete) {
                break
        }
        $element.Value
    }) -join ';'

    $completions = @(switch ($command) {
        'dblock' {
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Run a command while holding a lock')
            [CompletionResult]::new('acquire', 'acquire', [CompletionResultType]::ParameterValue, 'Take a lock by hand and print its owner id')
            [CompletionResult]::new('renew', 'renew', [CompletionResultType]::ParameterValue, 'Extend a lease that was taken by hand')
            [CompletionResult]::new('release', 'release', [CompletionResultType]::ParameterValue, 'Give a lease back')
            [CompletionResult]::new('check', 'check', [CompletionResultType]::ParameterValue, 'Ask whether a lease is still held')
            [CompletionResult]::new('status', 'status', [CompletionResultType]::ParameterValue, 'Show who holds which locks')
            [CompletionResult]::new('force-release', 'force-release', [CompletionResultType]::ParameterValue, 'Take a lock away from its holder')
            [CompletionResult]::new('block', 'block', [CompletionResultType]::ParameterValue, 'Refuse new grants of a key, for maintenance')
            [CompletionResult]::new('unblock', 'unblock', [CompletionResultType]::ParameterValue, 'Allow grants of a blocked key again')
            [CompletionResult]::new('init', 'init', [CompletionResultType]::ParameterValue, 'Create the tables, or check that they are right')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Print completions for a shell')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'dblock;run' {
            [CompletionResult]::new('-k', '-k', [CompletionResultType]::ParameterName, 'The lock''s key: 1 to 255 bytes of UTF-8')
            [CompletionResult]::new('--key', '--key', [CompletionResultType]::ParameterName, 'The lock''s key: 1 to 255 bytes of UTF-8')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Length of the lease, 1s to 30d; a bare number is seconds')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'Length of the lease, 1s to 30d; a bare number is seconds')
            [CompletionResult]::new('-w', '-w', [CompletionResultType]::ParameterName, 'Wait up to D if the key is busy; without D, for ever')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'Wait up to D if the key is busy; without D, for ever')
            [CompletionResult]::new('-E', '-E ', [CompletionResultType]::ParameterName, 'Exit with this status if the key is busy')
            [CompletionResult]::new('--busy-exit', '--busy-exit', [CompletionResultType]::ParameterName, 'Exit with this status if the key is busy')
            [CompletionResult]::new('--slots', '--slots', [CompletionResultType]::ParameterName, 'Let N holders have the key at once; all who use the key must say the same')
            [CompletionResult]::new('--slot-by', '--slot-by', [CompletionResultType]::ParameterName, 'With --slots, take only the slot that VALUE is hashed to')
            [CompletionResult]::new('--at-least', '--at-least', [CompletionResultType]::ParameterName, 'Keep the key closed for at least D after the grant, even if the job ends sooner')
            [CompletionResult]::new('--once-per', '--once-per', [CompletionResultType]::ParameterName, 'Skip if a run with this option was granted less than D ago and succeeded')
            [CompletionResult]::new('--lock-delay', '--lock-delay', [CompletionResultType]::ParameterName, 'If the lease is lost, let nobody have the key for a further D')
            [CompletionResult]::new('--wake', '--wake', [CompletionResultType]::ParameterName, 'How to learn that the key is free: woken by the server if possible, or by looking')
            [CompletionResult]::new('--note', '--note', [CompletionResultType]::ParameterName, 'A text that status shows, such as the address of a CI job')
            [CompletionResult]::new('--kill-after', '--kill-after', [CompletionResultType]::ParameterName, 'Kill the job D after it was asked to end; default: a quarter of the TTL, at most 10s')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'End the job if it takes longer than D; status 124')
            [CompletionResult]::new('--leftovers', '--leftovers', [CompletionResultType]::ParameterName, 'What to do with processes that the job leaves in its process group when its first process ends')
            [CompletionResult]::new('--report', '--report', [CompletionResultType]::ParameterName, 'Write one JSON object about the run to FILE')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Give up at once if the key is busy (this is the default)')
            [CompletionResult]::new('--no-wait', '--no-wait', [CompletionResultType]::ParameterName, 'Give up at once if the key is busy (this is the default)')
            [CompletionResult]::new('--reentrant', '--reentrant', [CompletionResultType]::ParameterName, 'If the job that this runs in holds the key, run the command under that lease')
            [CompletionResult]::new('--pass-credentials', '--pass-credentials', [CompletionResultType]::ParameterName, 'Leave the variables with dblock''s credentials in the job''s environment')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dblock;acquire' {
            [CompletionResult]::new('-k', '-k', [CompletionResultType]::ParameterName, 'The lock''s key: 1 to 255 bytes of UTF-8')
            [CompletionResult]::new('--key', '--key', [CompletionResultType]::ParameterName, 'The lock''s key: 1 to 255 bytes of UTF-8')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Length of the lease, 1s to 30d; a bare number is seconds')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'Length of the lease, 1s to 30d; a bare number is seconds')
            [CompletionResult]::new('-w', '-w', [CompletionResultType]::ParameterName, 'Wait up to D if the key is busy; without D, for ever')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'Wait up to D if the key is busy; without D, for ever')
            [CompletionResult]::new('-E', '-E ', [CompletionResultType]::ParameterName, 'Exit with this status if the key is busy')
            [CompletionResult]::new('--busy-exit', '--busy-exit', [CompletionResultType]::ParameterName, 'Exit with this status if the key is busy')
            [CompletionResult]::new('--slots', '--slots', [CompletionResultType]::ParameterName, 'Let N holders have the key at once; all who use the key must say the same')
            [CompletionResult]::new('--slot-by', '--slot-by', [CompletionResultType]::ParameterName, 'With --slots, take only the slot that VALUE is hashed to')
            [CompletionResult]::new('--at-least', '--at-least', [CompletionResultType]::ParameterName, 'Keep the key closed for at least D after the grant, even if the job ends sooner')
            [CompletionResult]::new('--once-per', '--once-per', [CompletionResultType]::ParameterName, 'Skip if a run with this option was granted less than D ago and succeeded')
            [CompletionResult]::new('--lock-delay', '--lock-delay', [CompletionResultType]::ParameterName, 'If the lease is lost, let nobody have the key for a further D')
            [CompletionResult]::new('--wake', '--wake', [CompletionResultType]::ParameterName, 'How to learn that the key is free: woken by the server if possible, or by looking')
            [CompletionResult]::new('--note', '--note', [CompletionResultType]::ParameterName, 'A text that status shows, such as the address of a CI job')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Give up at once if the key is busy (this is the default)')
            [CompletionResult]::new('--no-wait', '--no-wait', [CompletionResultType]::ParameterName, 'Give up at once if the key is busy (this is the default)')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print a JSON object instead of the owner id')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dblock;renew' {
            [CompletionResult]::new('-k', '-k', [CompletionResultType]::ParameterName, 'The lock''s key')
            [CompletionResult]::new('--key', '--key', [CompletionResultType]::ParameterName, 'The lock''s key')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'The owner id that acquire printed')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'The owner id that acquire printed')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'New length of the lease from now on, 1s to 30d; default: as before')
            [CompletionResult]::new('--ttl', '--ttl', [CompletionResultType]::ParameterName, 'New length of the lease from now on, 1s to 30d; default: as before')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dblock;release' {
            [CompletionResult]::new('-k', '-k', [CompletionResultType]::ParameterName, 'The lock''s key')
            [CompletionResult]::new('--key', '--key', [CompletionResultType]::ParameterName, 'The lock''s key')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'The owner id that acquire printed')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'The owner id that acquire printed')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'dblock;check' {
            [CompletionResult]::new('-k', '-k', [CompletionResultType]::ParameterName, 'The lock''s key; default: that of the job it is called in')
            [CompletionResult]::new('--key', '--key', [CompletionResultType]::ParameterName, 'The lock''s key; default: that of the job it is called in')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'The owner id; default: that of the job it is called in')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'The owner id; default: that of the job it is called in')
            [CompletionResult]::new('--min-left', '--min-left', [CompletionResultType]::ParameterName, 'Answer no if less than D of the lease is left')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('--print-sql', '--print-sql', [CompletionResultType]::ParameterName, 'If it is held, print the SQL statement that fails in a transaction unless it still is')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dblock;status' {
            [CompletionResult]::new('-k', '-k', [CompletionResultType]::ParameterName, 'Show this key only; may be repeated')
            [CompletionResult]::new('--key', '--key', [CompletionResultType]::ParameterName, 'Show this key only; may be repeated')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print a JSON array')
            [CompletionResult]::new('--watch', '--watch', [CompletionResultType]::ParameterName, 'Show it again every second until Ctrl-C')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dblock;force-release' {
            [CompletionResult]::new('-k', '-k', [CompletionResultType]::ParameterName, 'The lock''s key, as an option')
            [CompletionResult]::new('--key', '--key', [CompletionResultType]::ParameterName, 'The lock''s key, as an option')
            [CompletionResult]::new('--slot', '--slot', [CompletionResultType]::ParameterName, 'Only the holder of this slot')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'Only this holder, so that a newer one cannot be hit')
            [CompletionResult]::new('--owner', '--owner', [CompletionResultType]::ParameterName, 'Only this holder, so that a newer one cannot be hit')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Do not ask')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Do not ask')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dblock;block' {
            [CompletionResult]::new('-k', '-k', [CompletionResultType]::ParameterName, 'The lock''s key, as an option')
            [CompletionResult]::new('--key', '--key', [CompletionResultType]::ParameterName, 'The lock''s key, as an option')
            [CompletionResult]::new('--for', '--for', [CompletionResultType]::ParameterName, 'End by itself after D; without it, with ''dblock unblock'' only')
            [CompletionResult]::new('--reason', '--reason', [CompletionResultType]::ParameterName, 'Why, for those who find the key busy')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dblock;unblock' {
            [CompletionResult]::new('-k', '-k', [CompletionResultType]::ParameterName, 'The lock''s key, as an option')
            [CompletionResult]::new('--key', '--key', [CompletionResultType]::ParameterName, 'The lock''s key, as an option')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'dblock;init' {
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'Use this store: mysql://USER@HOST[:PORT]/DATABASE or sqlite:PATH')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'Read this configuration file instead of the usual ones')
            [CompletionResult]::new('--connect-timeout', '--connect-timeout', [CompletionResultType]::ParameterName, 'Time for a connection, with all its phases, while no lease is held; default: 5s')
            [CompletionResult]::new('--print-sql', '--print-sql', [CompletionResultType]::ParameterName, 'Print the statements and the least grants instead of running them')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Use a file of this user; it excludes this user''s processes on this host only')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Say nothing about a busy key')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Tell what happens')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dblock;completions' {
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'dblock;help' {
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Run a command while holding a lock')
            [CompletionResult]::new('acquire', 'acquire', [CompletionResultType]::ParameterValue, 'Take a lock by hand and print its owner id')
            [CompletionResult]::new('renew', 'renew', [CompletionResultType]::ParameterValue, 'Extend a lease that was taken by hand')
            [CompletionResult]::new('release', 'release', [CompletionResultType]::ParameterValue, 'Give a lease back')
            [CompletionResult]::new('check', 'check', [CompletionResultType]::ParameterValue, 'Ask whether a lease is still held')
            [CompletionResult]::new('status', 'status', [CompletionResultType]::ParameterValue, 'Show who holds which locks')
            [CompletionResult]::new('force-release', 'force-release', [CompletionResultType]::ParameterValue, 'Take a lock away from its holder')
            [CompletionResult]::new('block', 'block', [CompletionResultType]::ParameterValue, 'Refuse new grants of a key, for maintenance')
            [CompletionResult]::new('unblock', 'unblock', [CompletionResultType]::ParameterValue, 'Allow grants of a blocked key again')
            [CompletionResult]::new('init', 'init', [CompletionResultType]::ParameterValue, 'Create the tables, or check that they are right')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Print completions for a shell')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'dblock;help;run' {
            break
        }
        'dblock;help;acquire' {
            break
        }
        'dblock;help;renew' {
            break
        }
        'dblock;help;release' {
            break
        }
        'dblock;help;check' {
            break
        }
        'dblock;help;status' {
            break
        }
        'dblock;help;force-release' {
            break
        }
        'dblock;help;block' {
            break
        }
        'dblock;help;unblock' {
            break
        }
        'dblock;help;init' {
            break
        }
        'dblock;help;completions' {
            break
        }
        'dblock;help;help' {
            break
        }
    })

    $completions.Where{ $_.CompletionText -like "$wordToComplete*" } |
        Sort-Object -Property ListItemText
}
