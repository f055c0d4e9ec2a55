"""What preflight says: findings, worst first, each with what to do.

Rule 1: what is the same for many queues is one finding that names them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from twinbus.pairing.preflight.wording import listed

__all__ = ["Finding", "Report", "Severity"]


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
