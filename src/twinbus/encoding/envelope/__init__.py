"""The form of a message in a backlog queue, and how its original form is restored.

    alias(message, path)     a copy for the backlog: destination, session, time to live and schedule
                             are moved to application properties, with the mark of the pair that
                             the message belongs to (P21)
    restore(as delivered)    the original message, for its destination

Rule 1: all functions work on encoded messages and splice them: body, kept properties and kept
        annotations keep their bytes. The caller's bytes are never changed.
Rule 2: restore is the inverse of alias for every value that a broker passes on (P12). Values that
        only a broker sets (numbers, times, locks, counts) are never restored.
Rule 3: a reserved name is refused in every spelling, because .NET and SQL filters ignore case,
        and a restored message has none: if it gets to a backlog queue again, it has no
        destination. Where a broker's rules add one again, its hops are counted (Y6).

backlog_copy        alias, sizes, reserved names
restored_message    restore
fields              the properties of the envelope and their types, hops, reasons, time to live
fast_path           plain messages without parsing them
"""

from __future__ import annotations

from twinbus.encoding.batching import ranges_that_fit, split_to_fit
from twinbus.encoding.envelope.backlog_copy import (
    alias,
    check_fits,
    check_reserved,
    check_reserved_names,
    overhead_bytes,
    overhead_bytes_max,
    size_if_aliased,
)
from twinbus.encoding.envelope.fields import RESERVED_NAMES, Reason, TtlPolicy
from twinbus.encoding.envelope.restored_message import (
    RestoredMessage,
    read_destination,
    read_message_id,
    read_owner_mark,
    restore,
)
from twinbus.encoding.ping import is_ping, ping

__all__ = [
    "RESERVED_NAMES",
    "Reason",
    "RestoredMessage",
    "TtlPolicy",
    "alias",
    "check_fits",
    "check_reserved",
    "check_reserved_names",
    "is_ping",
    "overhead_bytes",
    "overhead_bytes_max",
    "ping",
    "ranges_that_fit",
    "read_destination",
    "read_message_id",
    "read_owner_mark",
    "restore",
    "size_if_aliased",
    "split_to_fit",
]
