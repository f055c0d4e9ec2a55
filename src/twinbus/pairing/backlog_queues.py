"""What a backlog queue is called and what it must be like (P4); pure.

Rule 1: the properties of a new backlog queue stand here and nowhere else.
Rule 2: an existing queue is used as it is. What differs is drift, told and left alone; a queue
        that would lose or refuse messages is not used at all (P20).
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
# Every tier of the service takes messages of this size.
MESSAGE_SIZE_KB_MIN: Final = 256
# AMQP with and without TLS, and WebSockets with and without it: doors of one namespace.
USUAL_PORTS: Final = (5671, 5672, 443, 80)
OWNER_PREFIX: Final = "twinbus-pair: "
"""What the mark of a pair begins with in the metadata of its queues (P21)."""
# A message that cannot go home yet is received again and again; its count must never end that.
DELIVERY_COUNT_MAX: Final = 2_147_483_647

# Not of the queue but of its namespace, its users or the moment.
_NOT_COMPARED: Final = {
    "path",
    "counts",
    "size_bytes",
    "user_metadata",
    # Left to the service, and compared with that of the other queues.
    "max_message_size_in_kilobytes",
    # Without duplicate detection the window means nothing, and with it the queue is not used.
    "duplicate_detection_history_time_window",
}
_LIFETIMES: Final = {"default_message_time_to_live", "auto_delete_on_idle"}


@dataclass(frozen=True, slots=True)
class PropertyDrift:
    """One property in which an existing backlog queue differs from what we would have made."""

    path: str
    name: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: {self.name} is {self.found}, not {self.wanted}"


def primary_name_of(
    address: NamespaceAddress, *, given: str | None = None, told: str | None = None
) -> str:
    """The primary's name in the paths of its backlog queues.

    ``given`` is the application's word, ``told`` the namespace's own (its namespace info), which
    counts where the host name says nothing: on this machine and behind a bare address.
    """
    if given is not None:
        return _checked(given)
    if not has_no_name(address):
        return _checked(address.host.split(".", 1)[0])
    if told is not None:
        return _checked(told)
    raise ConfigurationError(
        f"the address {address} does not tell what the primary namespace is called",
        hint="Give its name with namespace_name, or a rule with Manage so that it can be asked",
    )


def has_no_name(address: NamespaceAddress) -> bool:
    """Whether the host does not tell what its namespace is called: a bare or loopback address."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return ConnectionString(host=address.host).is_loopback
    return True


def is_same_place(one: NamespaceAddress, other: NamespaceAddress) -> bool:
    """Whether two addresses are one (P3)."""
    return is_same_host(one, other) and one.port == other.port


def is_same_host(one: NamespaceAddress, other: NamespaceAddress) -> bool:
    """Whether two addresses are of one host; every name of this machine's loopback is the same."""
    return _host(one) == _host(other)


def _host(address: NamespaceAddress) -> str:
    is_here = ConnectionString(host=address.host).is_loopback
    return "localhost" if is_here else address.host.lower()


def owner_address(address: NamespaceAddress) -> str:
    """A primary's address as marks spell it: see encoding.pair_mark for what counts."""
    host = _host(address)
    return host if address.port in USUAL_PORTS else f"{host}:{address.port}"


def owner_mark(address: NamespaceAddress, primary_name: str) -> str:
    """The mark of a primary's pairs (P21)."""
    return pair_mark(owner_address(address), primary_name)


def backlog_paths(primary_name: str, count: int) -> tuple[str, ...]:
    """The paths of a primary's backlog queues, in order."""
    return tuple(str(BacklogPath(primary_name, index)) for index in range(count))


def backlog_queue(path: str, owner: str = "") -> QueueProperties:
    """What a backlog queue is made like; whatever is not said here is the service's default.

    ``owner`` is the mark of the pair that makes it.
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
    """In what an existing queue differs; also whether a pair of another primary made it, and
    whether it takes smaller messages than those that are used beside it."""
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
    """The smallest queue decides what all of them are sent (P20). Not every service tells."""
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
    """Why a queue cannot be used as a backlog queue without losing messages; None if it can.

    ``allow_lossy`` is for those who know that their messages may be dropped after a while (P20).
    """
    if queue.requires_duplicate_detection:
        return (
            "it has duplicate detection, which drops the second of two messages with equal ids "
            "although they are for different destinations"
        )
    if queue.requires_session:
        return "it requires sessions, and backlog messages have none"
    if queue.forward_to is not None:
        return f"it forwards its messages to {queue.forward_to!r}, where no syphon looks"
    return None if allow_lossy else _loss_in(queue)


def _loss_in(queue: QueueProperties) -> str | None:
    """How messages would vanish that wait for long."""
    ttl = queue.default_message_time_to_live
    if ttl is not None and not queue.enable_dead_lettering_on_message_expiration:
        return f"its messages expire after {ttl} and are dropped then, not dead-lettered"
    if queue.auto_delete_on_idle is not None:
        return f"it is deleted with its messages when it was idle for {queue.auto_delete_on_idle}"
    return None


def _checked(name: str) -> str:
    canonical = parse_entity_path(name)
    if "/" in canonical:
        raise ConfigurationError(
            f"{name[:80]!a} cannot be the name of a namespace", hint="Use a name without a slash"
        )
    return canonical


def _shown(name: str, value: object) -> str:
    if value is None:
        return "never" if name in _LIFETIMES else "none"
    return str(value)
