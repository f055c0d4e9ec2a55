"""Which entity a request's path means.

    /$namespaceinfo                               the namespace
    /$Resources/queues   /$Resources/topics       lists
    /orders   /shop/orders                        a queue or a topic
    /orders/subscriptions[/billing]               its subscriptions, one of them
    /orders/subscriptions/billing/rules[/urgent]  its rules, one of them

The stock client writes a slash in a name as %2F; it means the same as one that is not encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twinbus.broker.administration.refusals import HttpError
from twinbus.entity_path import parse_entity_path

__all__ = ["RequestTarget", "parse_target"]

TargetKind = Literal[
    "namespace",
    "queues",
    "topics",
    "entity",
    "subscriptions",
    "subscription",
    "rules",
    "rule",
]


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """What a request is about."""

    kind: TargetKind
    path: str = ""
    """Of the queue or topic, as the client wrote it."""
    subscription: str = ""
    rule: str = ""

    @property
    def segments(self) -> tuple[str, ...]:
        """What a token must cover: empty is the whole namespace."""
        if not self.path:
            return ()
        path = f"{self.path}/subscriptions/{self.subscription}" if self.subscription else self.path
        return tuple(parse_entity_path(path).split("/"))


def parse_target(path: str) -> RequestTarget:
    """Read the decoded path of a request."""
    parts = path.removeprefix("/").split("/")
    first = parts[0].lower()
    if first.startswith("$"):
        return _reserved(first, parts[1:])
    lowered = [part.lower() for part in parts]
    if "subscriptions" not in lowered[1:]:
        return RequestTarget("entity", "/".join(parts))
    at = lowered.index("subscriptions", 1)
    return _below_topic("/".join(parts[:at]), parts[at + 1 :])


def _reserved(first: str, rest: list[str]) -> RequestTarget:
    if first == "$namespaceinfo" and not rest:
        return RequestTarget("namespace")
    if first == "$resources" and len(rest) == 1:
        if rest[0].lower() == "queues":
            return RequestTarget("queues")
        if rest[0].lower() == "topics":
            return RequestTarget("topics")
    raise HttpError(404, "There is nothing here under that path. Check its spelling.")


def _below_topic(topic: str, rest: list[str]) -> RequestTarget:
    match rest:
        case []:
            return RequestTarget("subscriptions", topic)
        case [subscription]:
            return RequestTarget("subscription", topic, subscription)
        case [subscription, word] if word.lower() == "rules":
            return RequestTarget("rules", topic, subscription)
        case [subscription, word, rule] if word.lower() == "rules":
            return RequestTarget("rule", topic, subscription, rule)
    raise HttpError(404, "There is nothing here under that path. Check its spelling.")
