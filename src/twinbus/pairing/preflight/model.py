"""Observations of both namespaces, and findings about them, as values.

What was seen of two namespaces, before anybody judges it.

An error that stands in a field is what the question ended with; None is a good answer.

How findings name what they are about.

What preflight says: findings, worst first, each with what to do.

Rule 1: what is the same for many queues is one finding that names them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from twinbus.drivers.administration import QueueProperties, TopicProperties
from twinbus.drivers.interface import NamespaceAddress
from twinbus.errors import ConfigurationError, TwinbusError
from twinbus.pairing.client.environment import Role

__all__ = [
    "BacklogFacts",
    "EntityFacts",
    "ExpectedLoad",
    "Finding",
    "NamespaceFacts",
    "Observations",
    "PingFacts",
    "Report",
    "Severity",
    "counted",
    "listed",
    "named",
]

BACKLOG_QUEUE_COUNT: Final = 10
EXPECTED_OUTAGE_S: Final = 3_600.0
MESSAGE_BYTES: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLoad:
    """What the pair has to bear."""

    expected_outage_s: float = EXPECTED_OUTAGE_S
    rate_per_s: float | None = None
    """Messages that are sent each second, to all entities together."""
    message_bytes: int = MESSAGE_BYTES
    backlog_queue_count: int = BACKLOG_QUEUE_COUNT
    has_syphon: bool = True
    """Whether these credentials are also those of the syphon."""
    allow_lossy: bool = False
    """Whether the application pairs with allow_lossy_backlog."""

    def __post_init__(self) -> None:
        if not self.expected_outage_s > 0 or self.message_bytes < 1 or self.backlog_queue_count < 1:
            raise ConfigurationError(
                "an expected outage, a message's size and the number of backlog queues are above 0",
                hint="Leave out what you do not know",
            )
        if self.rate_per_s is not None and not self.rate_per_s > 0:
            raise ConfigurationError(
                f"a rate of {self.rate_per_s!r} messages a second is no rate",
                hint="Leave it out if you do not know it",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """One of the two."""

    role: Role
    address: NamespaceAddress
    ip_addresses: frozenset[str] = frozenset()
    amqp: TwinbusError | None = None
    management: TwinbusError | None = None
    clock_ahead_s: float | None = None
    """None when it was not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityFacts:
    """A queue or topic of the primary."""

    path: str
    properties: QueueProperties | TopicProperties | None = None
    """None when nobody would say."""
    send: TwinbusError | None = None
    message_bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogFacts:
    """A backlog queue of the secondary."""

    path: str
    properties: QueueProperties | None = None
    """None when it does not exist, or nobody would say."""
    send: TwinbusError | None = None
    listen: TwinbusError | None = None
    message_bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PingFacts:
    """What became of a ping."""

    path: str
    was_seen: bool | None = None
    """None when nobody could look."""
    error: TwinbusError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Everything that was seen."""

    expectation: ExpectedLoad
    primary: NamespaceFacts
    secondary: NamespaceFacts
    primary_name: str | TwinbusError
    entities: tuple[EntityFacts, ...] = ()
    backlog: tuple[BacklogFacts, ...] = ()
    pings: tuple[PingFacts, ...] = ()
    pings_left_out: bool = False
    """Whether nobody wanted any."""


# Of many queues with the same trouble these are named; the others are counted.
NAMED_MAX: Final = 3


def named(namespace: NamespaceFacts) -> str:
    return f"{namespace.role} ({namespace.address})"


def listed(paths: Sequence[str]) -> str:
    first = ", ".join(paths[:NAMED_MAX])
    return first if len(paths) <= NAMED_MAX else f"{first} and {len(paths) - NAMED_MAX} more"


def counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


class Severity(IntEnum):
    """How bad it is; only a problem makes a pair not ready."""

    OK = 0
    NOTE = 1
    WARNING = 2
    PROBLEM = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """The stable name of what was checked, for programs."""
    severity: Severity
    subjects: tuple[str, ...]
    """What it is about: a namespace, some queues."""
    says: str
    """What was seen, as a sentence."""
    fix: str = ""
    """Exactly what to do; empty when there is nothing."""

    @property
    def subject(self) -> str:
        """What it is about, for people: the first of many."""
        return listed(self.subjects)

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "severity": self.severity.word,
            "subject": self.subject,
            "subjects": list(self.subjects),
            "says": self.says,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All findings."""

    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Report:
        """Worst first; equally bad ones stay in the order in which they were found."""
        return cls(tuple(sorted(_grouped(findings), key=lambda finding: -finding.severity)))

    @property
    def is_ready(self) -> bool:
        return all(finding.severity < Severity.PROBLEM for finding in self.findings)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "ready": self.is_ready,
            "counts": {each.word: self.count(each) for each in Severity},
            "findings": [finding.to_json() for finding in self.findings],
        }


def _grouped(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings that differ in nothing but what they are about as one (rule 1)."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        key = (each.check, each.severity, _without_subject(each), each.fix)
        groups.setdefault(key, []).append(each)
    for first, *others in groups.values():
        subjects = dict.fromkeys(name for each in (first, *others) for name in each.subjects)
        is_same = all(each.says == first.says for each in others)
        says = first.says if is_same else f"{first.says.rstrip('.')} (the others: likewise)"
        yield replace(first, subjects=tuple(subjects), says=says)


def _without_subject(finding: Finding) -> str:
    """The sentence of an error may name what it is about."""
    says = finding.says
    for name in finding.subjects:
        says = re.sub(rf"(?<![\w/]){re.escape(name)}(?![\w/])", "", says)
    return says
