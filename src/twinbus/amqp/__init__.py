"""AMQP 1.0 without I/O: bytes in, values out, and back.

Nothing here opens a socket, reads a clock or rolls a die, and nothing here imports the rest of
the project. The layers, each using the ones below it:

    connection, session, link        the protocol engine, for both roles
    performatives, transfers         what peers say
    message/                         what messages are made of
    frames                           where one frame ends and the next begins
    codec/                           single values and described lists
    limits, errors                   what is too much, and how it is said
"""

from __future__ import annotations
