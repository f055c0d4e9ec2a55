"""The entities of a soak and who uses them, made from three numbers.

of 10 entities   6 queues, 1 session queue, 1 topic with 2 subscriptions
of 20 connections   9 senders, 11 receivers, and 2 visitors who come and go
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

NAMESPACE = "soak"
SESSIONS_PER_QUEUE = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is."""

    queues: list[str]
    session_queues: list[str]
    topics: list[str]
    connection_count: int

    @classmethod
    def of(cls, entity_count: int, connection_count: int) -> Plan:
        tens = max(1, entity_count // 10)
        return cls(
            queues=[f"queue-{number}" for number in range(6 * tens)],
            session_queues=[f"sessions-{number}" for number in range(tens)],
            topics=[f"topic-{number}" for number in range(tens)],
            connection_count=connection_count,
        )

    @property
    def entity_count(self) -> int:
        return len(self.queues) + len(self.session_queues) + 3 * len(self.topics)

    def subscriptions(self) -> list[str]:
        return [f"{topic}/subscriptions/{name}" for topic in self.topics for name in ("all", "odd")]

    def destinations(self) -> list[str]:
        """Where senders send, one after the other."""
        return [*self.queues, *self.session_queues, *self.topics]

    def config_json(self) -> str:
        """The same as a configuration of the official emulator."""
        queues = [{"Name": name, "Properties": {}} for name in self.queues]
        queues += [
            {"Name": name, "Properties": {"RequiresSession": True}} for name in self.session_queues
        ]
        namespace = {"Name": NAMESPACE, "Queues": queues, "Topics": list(map(_topic, self.topics))}
        return json.dumps({"UserConfig": {"Namespaces": [namespace]}})


def _topic(name: str) -> dict[str, Any]:
    odd = {
        "Name": "odd",
        "Properties": {
            "FilterType": "Sql",
            "SqlFilter": {"SqlExpression": "number % 2 = 1"},
        },
    }
    return {
        "Name": name,
        "Properties": {},
        "Subscriptions": [
            {"Name": "all", "Properties": {}, "Rules": []},
            {"Name": "odd", "Properties": {}, "Rules": [odd]},
        ],
    }
