"""What came of the demo: for people, and as one JSON object for programs."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from twinbus.core.prices import money

__all__ = ["Result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The closed books."""

    sent: int
    delivered: int
    lost: tuple[str, ...]
    """Message ids."""
    duplicates: int
    unexpected: tuple[str, ...]
    failed_sends: int
    failover_seconds: float
    drained: int
    drain_messages_per_second: float
    operations: int
    """Billable ones, of both namespaces."""
    cost: float
    """What the outage cost on top of the messages themselves."""
    currency: str
    does_close: bool
    """Whether the books that Spark made of the logs close, too."""
    verdict: str

    @property
    def is_good(self) -> bool:
        """Whether everything that was promised has happened."""
        wrong = self.lost or self.unexpected or self.failed_sends or not self.does_close
        return bool(self.delivered) and not wrong

    def to_json(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "delivered": self.delivered,
            "lost": len(self.lost),
            "duplicates": self.duplicates,
            "unexpected": len(self.unexpected),
            "failed_sends": self.failed_sends,
            "failover_seconds": round(self.failover_seconds, 3),
            "drained": self.drained,
            "drain_messages_per_second": round(self.drain_messages_per_second, 1),
            "operations": self.operations,
            "cost": self.cost,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The same for a table."""
        return [
            ("sent", f"{self.sent:,}"),
            ("delivered", f"{self.delivered:,}"),
            ("lost", f"{len(self.lost):,}"),
            ("delivered twice", f"{self.duplicates:,}"),
            ("from nowhere", f"{len(self.unexpected):,}"),
            ("failed sends", f"{self.failed_sends:,}"),
            ("failover", f"{self.failover_seconds:.2f} s"),
            ("brought home by the syphon", f"{self.drained:,}"),
            ("at", f"{self.drain_messages_per_second:,.0f} messages a second"),
            ("billable operations", f"{self.operations:,}"),
            ("cost of the outage", f"{money(Decimal(str(self.cost)))} {self.currency}"),
            ("the logs", self.verdict),
        ]
