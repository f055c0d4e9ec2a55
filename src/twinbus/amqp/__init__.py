"""AMQP 1.0 without I/O: bytes in, values out, and back.

Nothing here opens a socket, reads a clock or uses random numbers, and nothing here imports the rest
of the project, except ``common.steps``. The layers, each using the ones below it:

    connection, session, link        the protocol engine, for both roles; its results are events
    transfer_runs                    a fast path for similar transfers of a busy sender
    performatives, transfers, sasl   the frames that peers exchange; delivery_states their outcomes
    message/                         the sections of messages
    frames                           where one frame ends and the next begins
    codec/                           single values and described lists
    limits, errors                   all limits, and the errors of this package
"""

from __future__ import annotations
