"""Observations of both namespaces, and findings about them, as values.

    Observations    what the probe has found; an error in a field is the result of that request,
                    None means success
    Finding         the result of one check, with what to do
    Report          all findings, worst first

Rule 1: the same finding for many queues is one finding that names all of them.
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
    """The load and the outage that the pair is checked for."""

    expected_outage_s: float = EXPECTED_OUTAGE_S
    rate_per_s: float | None = None
    """Messages per second, to all entities together."""
    message_bytes: int = MESSAGE_BYTES
    backlog_queue_count: int = BACKLOG_QUEUE_COUNT
    has_syphon: bool = True
    """Whether the syphon uses the same credentials."""
    allow_lossy: bool = False
    """Whether the application pairs with allow_lossy_backlog."""

    def __post_init__(self) -> None:
        if not self.expected_outage_s > 0 or self.message_bytes < 1 or self.backlog_queue_count < 1:
            raise ConfigurationError(
                "Expected outage, message size and number of backlog queues must be greater than "
                f"0, got {self.expected_outage_s!r} s, {self.message_bytes!r} bytes and "
                f"{self.backlog_queue_count!r}",
                hint="Remove the option to use its default",
            )
        if self.rate_per_s is not None and not self.rate_per_s > 0:
            raise ConfigurationError(
                f"Invalid rate: {self.rate_per_s!r} messages per second",
                hint="Use a number greater than 0, or remove the option",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """Observations of one of the two namespaces."""

    role: Role
    address: NamespaceAddress
    ip_addresses: frozenset[str] = frozenset()
    amqp: TwinbusError | None = None
    management: TwinbusError | None = None
    clock_ahead_s: float | None = None
    """None if the namespace did not return its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityFacts:
    """A queue or topic of the primary."""

    path: str
    properties: QueueProperties | TopicProperties | None = None
    """None if they could not be read."""
    send: TwinbusError | None = None
    message_bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogFacts:
    """A backlog queue of the secondary."""

    path: str
    properties: QueueProperties | None = None
    """None if the queue was not found, or they could not be read."""
    send: TwinbusError | None = None
    listen: TwinbusError | None = None
    message_bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PingFacts:
    """The result of one ping."""

    path: str
    was_seen: bool | None = None
    """Whether the ping is visible to receivers; None if that could not be checked."""
    error: TwinbusError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All observations."""

    expectation: ExpectedLoad
    primary: NamespaceFacts
    secondary: NamespaceFacts
    primary_name: str | TwinbusError
    entities: tuple[EntityFacts, ...] = ()
    backlog: tuple[BacklogFacts, ...] = ()
    pings: tuple[PingFacts, ...] = ()
    pings_disabled: bool = False
    """Whether pings were disabled."""


# Of many queues with the same problem this many are named; the others are counted.
NAMED_MAX: Final = 3


def named(namespace: NamespaceFacts) -> str:
    return f"{namespace.role} ({namespace.address})"


def listed(paths: Sequence[str]) -> str:
    first = ", ".join(paths[:NAMED_MAX])
    return first if len(paths) <= NAMED_MAX else f"{first} and {len(paths) - NAMED_MAX} more"


def counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


class Severity(IntEnum):
    """The severity of a finding; only with a problem a pair is not ready."""

    OK = 0
    NOTE = 1
    WARNING = 2
    PROBLEM = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    """The stable name of the check, for programs."""
    severity: Severity
    subjects: tuple[str, ...]
    """The namespace or the queues that were checked."""
    summary: str
    """What was found, as a sentence."""
    fix: str = ""
    """What to do; empty if nothing is to be done."""

    @property
    def subject(self) -> str:
        """The subjects as text: the first ones of many."""
        return listed(self.subjects)

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "severity": self.severity.word,
            "subject": self.subject,
            "subjects": list(self.subjects),
            "says": self.summary,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All findings."""

    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Report:
        """Worst first; findings of the same severity keep their order."""
        return cls(tuple(sorted(_group(findings), key=lambda finding: -finding.severity)))

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


def _group(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Combine findings that differ only in their subjects (rule 1)."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        key = (each.check, each.severity, _without_subject(each), each.fix)
        groups.setdefault(key, []).append(each)
    for first, *others in groups.values():
        subjects = dict.fromkeys(name for each in (first, *others) for name in each.subjects)
        is_same = all(each.summary == first.summary for each in others)
        summary = first.summary if is_same else f"{first.summary.rstrip('.')} (also for the others)"
        yield replace(first, subjects=tuple(subjects), summary=summary)


def _without_subject(finding: Finding) -> str:
    """The summary without the names of its subjects, which an error may contain."""
    text = finding.summary
    for name in finding.subjects:
        text = re.sub(rf"(?<![\w/]){re.escape(name)}(?![\w/])", "", text)
    return text
