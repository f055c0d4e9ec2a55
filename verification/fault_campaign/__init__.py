"""What goes in must come out: real processes, real faults, and one checker.

    __main__     ``python -m verification.fault_campaign``: one run or many, a table, a picture,
                 the seed to replay it
    plan         the entities, the numbers and the addresses of a run
    messages     messages of all shapes, from seed and value
    cards        the faults that there are
    schedule     which fault happens when, from a seed
    proxy        a TCP proxy on every line, with weather
    machine      a process's disk and clock; with shim.c, which is compiled when it is needed
    processes    brokers and roles as processes: start, kill, stop for a while
    roles        what senders, receivers, movers and the prober do in their processes
    syphon       ``twinbus syphon`` on Spark or with --local, its parts and its receipts
    site         everything that runs
    nemesis      what each card does, and how it is undone
    books        what was in a queue that was deleted, from the audit log
    controller   runs the plan: starts, faults, drains, counts
    history      what everybody wrote down
    clocks       wall clocks that jumped
    checker      the promise, over a history
    explanations why a message is there twice
    judging      the journals of an earlier run, judged again
    windows      when something was wrong, and with whom
    availability who was hindered, and by what
    undone       what a run had to do and did not, and who ended without being told
    timeline     a run as a picture
    report       the table

Rule 1: workload, faults and checker know nothing of each other; they meet in the history.
Rule 2: the checker is pure. It fails a run for one lost message, one that nobody sent, one ping
        that somebody saw, one duplicate that nobody can explain, and one message left behind.
        A run that did less than was planned has not kept its promise either.
Rule 3: Linux only: every line has an address of its own in 127.0.0.0/8.
"""
