"""Random administrative calls against a real namespace, with trouble at every step (rule M15).

    $ python -m verification.catalogue_simulation --sequences 1000000 [--seed N]

disk.py        a store that can be full, fail, or be read behind the namespace's back
calls.py       the calls, chosen at random: entities, rules, resets, purges, a start with a config
model.py       what the calls that succeeded must have led to, kept apart from the broker's code
checks.py      memory equals disk, machines equal values, and both equal the model
sequence.py    one sequence from a seed: calls together, an injection at each step, restarts
many.py        many sequences over processes; whether every call and every injection was seen

Rule 1: one seed is one sequence, always the same.
Rule 2: the namespace, the planning and the stores are the real ones; only time and threads
        (tests/support/simulated_loop.py) and what goes wrong with the disk are simulated.
"""
