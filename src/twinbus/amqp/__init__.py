"""AMQP 1.0 without I/O: bytes in, values out, and back.

Nothing here opens a socket, reads a clock or rolls a die, and nothing here imports the rest of
the project. The layers, each using the ones to its right:

    connection, session, link        the protocol engine, for both roles
      performatives, transfers       what peers say          --> composites, plain
      sections (scan, message, ...)  what messages are made of --> section_checks, properties
        frames                       where one frame ends and the next begins
        decode, skip, encode         single values           --> wire, types
          limits, errors             what is too much, and how it is said
"""

from __future__ import annotations
