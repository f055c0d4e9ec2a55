"""Planted bugs: mistakes that somebody could make, each planted in the real code while one of the
harnesses runs, and each to be caught by the check that is named for it.

A harness that finds nothing may be blind. ``python -m verification.mutation`` shows that none of
them is.

    bugs/        what is planted, a function for each: core, syphon, connector, broker, store
    registry.py  every bug with its harness and the words of the check that must see it
    harnesses/   the harnesses that the project has, each as rounds with complaints
    planting.py  how a bug gets into this process and into all that it starts
    bite.py      one harness with one bug, or without one, in a process of its own
    __main__.py  all of them, as a table

Rule 1: a bug is caught when the named check complains; that something else goes wrong does not
        count.
Rule 2: the same rounds without a bug must be clean. Otherwise the complaint proves nothing.
Rule 3: a bug changes the code that users run, in the process that runs it. No harness knows which
        bug is planted.
"""
