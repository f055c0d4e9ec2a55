"""The entities of the matrix, and every spelling under which they are asked for.

What a spelling means is written by hand, not worked out: None is a spelling that means nothing.
"""

from __future__ import annotations

from typing import Final

from tests.unit.broker.rights.oracle import Place

__all__ = ["ATOM_PATHS", "LINK_ADDRESSES", "QUEUES", "RESOURCES", "TOPICS", "entity"]

QUEUES: Final = (
    "tenant",
    "tenant/private",
    "tenant/x-servicebus-transfer/0",
    "tenant2",
    "other",
    "news/private",
)
TOPICS: Final = ("news", "news2")
"""Each has a subscription ``s``."""


def entity(path: str) -> Place:
    return Place(path, path)


def part(owner: str, below: str) -> Place:
    return Place(owner, f"{owner}/{below}")


TENANT, PRIVATE, BACKLOG = map(entity, QUEUES[:3])

LINK_ADDRESSES: Final[dict[str, Place | None]] = {
    "tenant": TENANT,
    "Tenant": TENANT,
    "amqps://localhost:5671/tenant": TENANT,
    "tenant/$DeadLetterQueue": part("tenant", "$deadletterqueue"),
    "tenant/$Transfer/$DeadLetterQueue": part("tenant", "$transfer/$deadletterqueue"),
    "tenant/private": PRIVATE,
    "TENANT/Private": PRIVATE,
    "tenant/private/$deadletterqueue": part("tenant/private", "$deadletterqueue"),
    "tenant/x-servicebus-transfer/0": BACKLOG,
    "tenant/missing": entity("tenant/missing"),
    "tenant/subscriptions/s": part("tenant", "subscriptions/s"),
    "tenant2": entity("tenant2"),
    "other": entity("other"),
    "news": entity("news"),
    "news/subscriptions/s": part("news", "subscriptions/s"),
    "News/Subscriptions/S/$DeadLetterQueue": part("news", "subscriptions/s/$deadletterqueue"),
    "news/private": entity("news/private"),
    "news2/subscriptions/s": part("news2", "subscriptions/s"),
    "tenant/": None,
    "/tenant": None,
    "tenant//private": None,
    "tenant%2Fprivate": None,
    "tenant/../other": None,
    "tenant/$deadletterqueue/private": None,
    "tenant/$nothing": None,
}

ATOM_PATHS: Final[dict[str, Place | None]] = {
    "tenant": TENANT,
    "TENANT": TENANT,
    "tenant/private": PRIVATE,
    "tenant%2Fprivate": PRIVATE,
    "Tenant/Private": PRIVATE,
    "tenant/x-servicebus-transfer/0": BACKLOG,
    "tenant/new": entity("tenant/new"),
    "tenant2": entity("tenant2"),
    "other": entity("other"),
    "news": entity("news"),
    "news/private": entity("news/private"),
    "tenant/": None,
    "tenant//private": None,
    "tenant/../other": None,
    "tenant/$deadletterqueue": None,
    "tenant/$management": None,
    "tenant%252Fprivate": None,
}

RESOURCES: Final[dict[str, Place | None]] = {
    "": Place("", ""),
    "tenant": TENANT,
    "Tenant/": TENANT,
    "tenant/private": PRIVATE,
    "tenant/x-servicebus-transfer": entity("tenant/x-servicebus-transfer"),
    "tenant/x-servicebus-transfer/0": BACKLOG,
    "tenant/$deadletterqueue": part("tenant", "$deadletterqueue"),
    "tenant/$management": part("tenant", "$management"),
    "tenant/subscriptions/s": part("tenant", "subscriptions/s"),
    "ten": entity("ten"),
    "tenant2": entity("tenant2"),
    "other": entity("other"),
    "news": entity("news"),
    "news/subscriptions": part("news", "subscriptions"),
    "news/subscriptions/s": part("news", "subscriptions/s"),
    "news/subscriptions/s/rules/r": part("news", "subscriptions/s/rules/r"),
    "news/private": entity("news/private"),
    "tenant%2Fprivate": None,
    "tenant//private": None,
    "tenant/..": None,
}
"""What tokens are made out to."""
