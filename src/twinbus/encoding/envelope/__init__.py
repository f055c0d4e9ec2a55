"""What a message looks like while it waits in a backlog queue, and how it becomes itself again.

    alias(message, path)     a copy for the backlog: destination, session, TTL and schedule stand in
                             application properties, and what they were taken from is empty; beside
                             them the pair that it belongs to (P21)
    restore(as delivered)    the message as it was, for its destination

Rule 1: everything works on encoded messages and splices: body, kept properties and kept
        annotations keep their bytes. The caller's bytes are never changed.
Rule 2: alias and restore undo each other in every value that a broker hands on (P12). What only
        a broker says about a message (numbers, times, locks, counts) is never carried home.
Rule 3: a reserved name is refused in every spelling, because .NET and SQL filters ignore case,
        and a restored message has none: whatever comes to a backlog queue a second time has no
        destination. Where a broker's rules give it one again, its hops are counted (Y6).

backlog_copy        alias, sizes, reserved names
restored_message    restore
fields              the aliases and their types, hops, reasons, time to live
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
