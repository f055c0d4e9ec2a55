"""A simulated world around the real core: one seed, one bad day, replayed exactly.

    plan        what a seed chooses: the pair, the messages, the faults
    world       events in order of time, processes that sleep and die, the trace
    network     one request and what becomes of it
    services    the two namespaces: what they hold, and how they fail
    application a factory: the real Failover, BacklogRotation and PairLifecycle at work
    sends       one send of it: the real Send, asked step by step
    mover       the real chunk planner, ledger and board bringing the backlog home
    acts        what a backlog queue and a destination do when a mover asks
    books       what every message went through, and the checks at the end
    watch       the checks that are made while it happens; shadow is its notebook
    home_checks the checks of what leaves a backlog queue
    coverage    which pairs of state and signal were visited, and what has to happen sometimes
    run         one seed, many seeds; many: many processes

Rule 1: everything that decides is the code of ``twinbus.failover``; only what is outside of it
        (time, networks, services, callers) is simulated.
Rule 2: a schedule depends on its seed alone: not on the machine, the hash seed or other schedules.
Rule 3: a check restates a promise in its own words and keeps its own notes; it does not take the
        core's word for it.
"""

from __future__ import annotations
