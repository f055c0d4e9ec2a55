"""What preflight says: findings, worst first, each with what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

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
    subject: str
    """What it is about: a namespace, a queue."""
    says: str
    """What was seen, as a sentence."""
    fix: str = ""
    """Exactly what to do; empty when there is nothing."""

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "severity": self.severity.word,
            "subject": self.subject,
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
        return cls(tuple(sorted(findings, key=lambda finding: -finding.severity)))

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
