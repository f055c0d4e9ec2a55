"""What goes in must come out: real processes, real faults, and one checker.

    __main__     ``python -m campaign``: one run, one table, the seed to replay it
    plan         the entities, the numbers and the addresses of a run
    schedule     which fault happens when, from a seed
    proxy        a TCP proxy on every line, with weather
    processes    brokers and roles as processes: start, kill, stop for a while
    roles        what senders, receivers and movers do in their processes
    syphon       ``twinbus syphon --local`` as one of the movers, and its receipts
    controller   runs the plan: starts, faults, drains, counts
    history      what everybody wrote down
    checker      the promise, over a history

Rule 1: workload, faults and checker know nothing of each other; they meet in the history.
Rule 2: the checker is pure. It fails a run for one lost message, one that nobody sent, one ping
        that somebody saw, one duplicate that nobody can explain, and one message left behind.
Rule 3: Linux only: every line has an address of its own in 127.0.0.0/8.
"""
