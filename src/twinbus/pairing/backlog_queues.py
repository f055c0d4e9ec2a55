"""The names and the properties of backlog queues (P4); pure.

Rule 1: the properties of a new backlog queue are defined here and nowhere else.
Rule 2: an existing queue is used unchanged. Different properties are drift, which is reported; a
        queue that would lose or refuse messages is not used at all (P20).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final

from twinbus.common.connection_string import ConnectionString
from twinbus.common.entity_path import BacklogPath, parse_entity_path
from twinbus.drivers.administration import QueueProperties
from twinbus.drivers.interface import NamespaceAddress
from twinbus.encoding.pair_mark import address_in, pair_mark
from twinbus.errors import ConfigurationError

__all__ = [
    "PropertyDrift",
    "backlog_paths",
    "backlog_queue",
    "drift_of",
    "has_no_name",
    "is_same_host",
    "is_same_place",
    "owner_address",
    "owner_mark",
    "primary_name_of",
    "unsafe_property",
]

BACKLOG_SIZE_MB: Final = 5120
# Every tier of the service accepts messages of this size.
MESSAGE_SIZE_KB_MIN: Final = 256
# AMQP and WebSockets, each with and without TLS: ports of one namespace.
USUAL_PORTS: Final = (5671, 5672, 443, 80)
OWNER_PREFIX: Final = "twinbus-pair: "
"""Prefix of the mark of a pair in the metadata of its queues (P21)."""
# A message that cannot be moved yet is received again and again, without a limit.
DELIVERY_COUNT_MAX: Final = 2_147_483_647

# These depend on the namespace, its users or the current state.
_NOT_COMPARED: Final = {
    "path",
    "counts",
    "size_bytes",
    "user_metadata",
    # Set by the service, and compared with that of the other queues.
    "max_message_size_in_kilobytes",
    # The window has no effect without duplicate detection, and with it the queue is not used.
    "duplicate_detection_history_time_window",
}
_LIFETIMES: Final = {"default_message_time_to_live", "auto_delete_on_idle"}


@dataclass(frozen=True, slots=True)
class PropertyDrift:
    """One property in which an existing backlog queue differs from a new one."""

    path: str
    name: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: {self.name} is {self.found}, not {self.wanted}"


def primary_name_of(
    address: NamespaceAddress, *, configured: str | None = None, reported: str | None = None
) -> str:
    """The primary's name in the paths of its backlog queues.

    ``configured`` is the name in the options, ``reported`` the name that the namespace reports. The
    latter is used if the host name contains none: a loopback or an IP address.
    """
    if configured is not None:
        return _check_name(configured)
    if not has_no_name(address):
        return _check_name(address.host.split(".", 1)[0])
    if reported is not None:
        return _check_name(reported)
    raise ConfigurationError(
        f"The name of the primary namespace at {address} is unknown",
        hint="Set namespace_name, or use an access rule with the Manage claim",
    )


def has_no_name(address: NamespaceAddress) -> bool:
    """Whether the host does not contain the name of its namespace: an IP or loopback address."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return ConnectionString(host=address.host).is_loopback
    return True


def is_same_place(one: NamespaceAddress, other: NamespaceAddress) -> bool:
    """Whether two addresses are the same (P3)."""
    return is_same_host(one, other) and one.port == other.port


def is_same_host(one: NamespaceAddress, other: NamespaceAddress) -> bool:
    """Whether two addresses have the same host; all names of the loopback are the same."""
    return _host(one) == _host(other)


def _host(address: NamespaceAddress) -> str:
    is_loopback = ConnectionString(host=address.host).is_loopback
    return "localhost" if is_loopback else address.host.lower()


def owner_address(address: NamespaceAddress) -> str:
    """The address of a primary as in marks: see encoding.pair_mark for its parts."""
    host = _host(address)
    return host if address.port in USUAL_PORTS else f"{host}:{address.port}"


def owner_mark(address: NamespaceAddress, primary_name: str) -> str:
    """The mark of a primary's pairs (P21)."""
    return pair_mark(owner_address(address), primary_name)


def backlog_paths(primary_name: str, count: int) -> tuple[str, ...]:
    """The paths of a primary's backlog queues, in order."""
    return tuple(str(BacklogPath(primary_name, index)) for index in range(count))


def backlog_queue(path: str, owner: str = "") -> QueueProperties:
    """The properties of a new backlog queue; all others are the defaults of the service.

    ``owner`` is the mark of the pair that creates it.
    """
    return QueueProperties(
        path=path,
        max_size_in_megabytes=BACKLOG_SIZE_MB,
        max_delivery_count=DELIVERY_COUNT_MAX,
        default_message_time_to_live=None,
        auto_delete_on_idle=None,
        lock_duration=timedelta(minutes=1),
        enable_dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
        user_metadata=f"{OWNER_PREFIX}{owner}" if owner else "",
    )


def drift_of(
    queue: QueueProperties, owner: str = "", beside: Iterable[QueueProperties] = ()
) -> tuple[PropertyDrift, ...]:
    """The properties in which an existing queue differs; also whether a pair of another primary
    created it, and whether it accepts only smaller messages than the other queues."""
    wanted = backlog_queue(queue.path)
    differences = tuple(
        PropertyDrift(
            queue.path, field.name, _shown(field.name, expected), _shown(field.name, found)
        )
        for field in fields(queue)
        if field.name not in _NOT_COMPARED
        and (expected := getattr(wanted, field.name)) != (found := getattr(queue, field.name))
    )
    return _foreign_mark(queue, owner) + differences + _small_messages(queue, beside)


def _small_messages(
    queue: QueueProperties, beside: Iterable[QueueProperties]
) -> tuple[PropertyDrift, ...]:
    """The smallest queue limits the messages of all (P20). Not every service reports it."""
    name, size_kb = "max_message_size_in_kilobytes", queue.max_message_size_in_kilobytes
    others = (each.max_message_size_in_kilobytes or 0 for each in beside)
    wanted_kb = max(MESSAGE_SIZE_KB_MIN, *others, 0)
    if not size_kb or size_kb >= wanted_kb:
        return ()
    return (PropertyDrift(queue.path, name, str(wanted_kb), str(size_kb)),)


def _foreign_mark(queue: QueueProperties, owner: str) -> tuple[PropertyDrift, ...]:
    text = queue.user_metadata
    mark = text.removeprefix(OWNER_PREFIX)
    if not owner or mark in (text, owner):
        return ()
    return (PropertyDrift(queue.path, "owner", address_in(owner), address_in(mark)),)


def unsafe_property(queue: QueueProperties, *, allow_lossy: bool = False) -> str | None:
    """Why a queue would lose messages as a backlog queue; None if it would not.

    With ``allow_lossy`` a queue may drop messages after a while (P20).
    """
    if queue.requires_duplicate_detection:
        return (
            "duplicate detection is enabled, which drops the second of two messages with equal "
            "ids even if their destinations differ"
        )
    if queue.requires_session:
        return "sessions are required, and backlog messages have no session id"
    if queue.forward_to is not None:
        return f"messages are forwarded to {queue.forward_to!r}, which no syphon reads"
    return None if allow_lossy else _loss_in(queue)


def _loss_in(queue: QueueProperties) -> str | None:
    """How messages that wait for a long time would be lost; None if they would not."""
    ttl = queue.default_message_time_to_live
    if ttl is not None and not queue.enable_dead_lettering_on_message_expiration:
        return f"messages expire after {ttl} and are dropped, not dead-lettered"
    if queue.auto_delete_on_idle is not None:
        return f"the queue is deleted with its messages after {queue.auto_delete_on_idle} idle time"
    return None


def _check_name(name: str) -> str:
    canonical = parse_entity_path(name)
    if "/" in canonical:
        raise ConfigurationError(
            f"Invalid namespace name: {name[:80]!a}", hint="Use a name without a slash"
        )
    return canonical


def _shown(name: str, value: object) -> str:
    if value is None:
        return "never" if name in _LIFETIMES else "none"
    return str(value)
