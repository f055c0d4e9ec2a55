"""What crashes, failing disks and rotting bits do to a store: tens of thousands of each, checked.

    workload    random work with right books; builders: short words for it
    recorder    notes down every write, sync and name of a real store
    states      what a power cut may have left of it, at any moment
    recorded    a recorded run, and the checker that states the promise
    power       the crash states of many runs
    stories     scripted work: sends, topics, sessions, upgrades, ...
    faulty      a disk that fails, tears or kills at one of its operations
    kills       a process that dies at each operation of each story, and during its recovery
    disk_errors a disk that fails at each operation of each story, and during the recovery
    rot         one bit flipped at every byte of a small store
    recovery    what the doctor makes of all of these
    control     a planted bug that the checker has to see
    tally       what was found; many: on all cores

Rule 1: the store is the real one, on real files, and is opened by its own recovery.
Rule 2: what may be found afterwards comes from a model in memory, never from the store.
Rule 3: everything depends on the seed alone, so that a complaint can be looked at again.
"""

from __future__ import annotations
