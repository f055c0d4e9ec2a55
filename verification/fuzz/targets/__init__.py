"""What takes bytes from outside: one module for each place of the product.

decoder.py   values and performatives from bytes
engine.py    a whole connection without I/O, frame by frame
broker.py    a client's connection to a namespace with entities, callback by callback
ingest.py    the payload of a transfer, on its way into a queue
sas.py       shared access signatures
filters.py   rules: read, compiled, asked about a message, applied
http.py      requests to both HTTP applications, through the parser in front of them
envelope.py  messages on their way to a backlog and home, and as a client reads them
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from verification.fuzz.oracle import Target

NAMES = ("decoder", "engine", "broker", "ingest", "sas", "filters", "http", "envelope")


def make_target(name: str) -> Target:
    """The target of that name."""
    module = import_module(f"{__name__}.{name}")
    make: Callable[[], Target] = module.make
    return make()
