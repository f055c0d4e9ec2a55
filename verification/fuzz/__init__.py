"""Hostile inputs by the million, with an oracle for CPU, memory and exceptions.

    python -m verification.fuzz --minutes 5      both cores, all targets
    python -m verification.fuzz --replay FILE    one finding or corpus entry again

    generator or mutator --input--> target --calls--> meter --figures--> oracle --> finding
            ^                                                        |
            +------------- corpus: new lines, slowest inputs <-------+

oracle.py        what an input may cost, and how an excess is told from noise
speed.py         how fast this machine is beside the one that the limits are meant for
grammar.py       AMQP values, messages and frames; conversations.py whole connections;
                 texts.py tokens, SQL, XML, JSON and HTTP
mutation.py      changes to what is in the corpus
coverage.py      which lines an input reached
corpus.py        inputs that are kept; findings.py inputs that broke a promise
minimise.py      the smallest input that still breaks it
worker.py        one process of a run; run.py all of them, progress and summary
in_memory.py     a broker without sockets or threads, each callback of its loop measured
targets/         decoder, engine, broker, ingest, sas, filters, http, envelope

Rule 1 (M13): what holds the event loop in one piece takes at most 5 ms of CPU for an input of up
        to 1 MiB, and 1 ms for one of up to 64 KiB of a peer without a token. A target says which
        calls hold the loop; a call that gives the loop back ends the measurement.
Rule 2: an input allocates at most 64 times its size, and never less than 256 KiB is allowed: the
        fixed cost of a decoder, a session or a link is no amplification.
Rule 3: only the errors that a target documents are raised, and the broker's log stays free of
        tracebacks.
Rule 4: a figure counts when it comes again: five repetitions or more without the garbage collector,
        of which the fastest is taken, at the best speed that the machine has meanwhile; again some
        seconds later; and again when the run is over, in a process of its own.

Why not atheris (3.0.0, tried on Python 3.11): its instrumentation makes the decoder 4.3 times
slower (13.4 instead of 3.1 ms for 10,000 uints), so that a CPU oracle would judge other code than
the one that runs; and in 3.2 million executions (60 s) libFuzzer's byte mutations reached inputs
of a few dozen bytes, the slowest of which took 1.2 ms. A grammar's first 64 KiB map takes longer.
Coverage by ``sys.settrace`` costs ten times the execution, so it looks at a sample of small inputs.
"""
