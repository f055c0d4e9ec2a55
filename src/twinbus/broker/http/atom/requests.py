"""One ATOM request, and the target of its path.

    /$namespaceinfo                               the namespace
    /$Resources/queues   /$Resources/topics       lists
    /orders   /shop/orders                        a queue or a topic
    /orders/subscriptions[/billing]               its subscriptions, one of them
    /orders/subscriptions/billing/rules[/urgent]  its rules, one of them

The official client writes a slash in a name as %2F; it means the same as one that is not encoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote

from starlette.requests import Request

from twinbus.broker.access.sas import AccessGrant, Audience
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.http.atom.forward_rights import check_forwards
from twinbus.broker.http.atom.xml import FeedEntry, entry, entry_text, feed
from twinbus.broker.http.request_checks import (
    HttpError,
    audience_of,
    check_still_granted,
    parse_page,
    read_body,
)
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.common.entity_path import parse_entity_path

__all__ = ["Answer", "Call", "RequestTarget", "parse_target"]

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
    """The target of a request."""

    kind: TargetKind
    path: str = ""
    """Of the queue or topic, as the client wrote it."""
    subscription: str = ""
    rule: str = ""

    @property
    def segments(self) -> tuple[str, ...]:
        """The path that a token must cover: empty is the whole namespace."""
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
    raise HttpError(404, "No resource has this path. Check its spelling.")


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
    raise HttpError(404, "No resource has this path. Check its spelling.")


Item = TypeVar("Item")

# An entry takes about 50 microseconds.
ENTRIES_PER_TURN: Final = 20


class Answer(NamedTuple):
    """A response."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose client has the claim for it."""

    request: Request
    namespace: RunningNamespace
    target: RequestTarget
    version: str
    grant: AccessGrant
    """What the client's token allows."""

    async def body(self) -> bytes:
        """The body, if the client still has the claim when the body is complete."""
        body = await read_body(self.request)
        check_still_granted(self.grant, self.namespace.access)
        return body

    def check_forwards(self, before: QueueDescription | None, after: QueueDescription) -> None:
        """Raise AccessDenied unless the client may send to all targets of the entity."""
        check_forwards(self.request, self.namespace.access, self.grant, before, after)

    @property
    def audience(self) -> Audience:
        """The names of the namespace, and the one that the client used if any may be used."""
        return audience_of(self.request, self.namespace.access)

    @property
    def is_update(self) -> bool:
        """Whether the entity must exist; raises when the condition is not supported."""
        if_match = self.request.headers.get("if-match")
        if if_match is not None and if_match.strip() != "*":
            raise HttpError(412, "Entities have no version. Send If-Match: * to change one.")
        return if_match is not None

    def check_is_missing(self, entity: object | None, what: str) -> None:
        """Refuse to create what exists; nothing may be awaited between this and the creation."""
        if entity is None:
            return
        if self.request.headers.get("if-none-match", "").strip() == "*":
            raise HttpError(412, f"The condition If-None-Match: * failed. {what} already exists.")
        raise HttpError(409, f"{what} already exists. Send If-Match: * to change it.")

    def href(self, path: str) -> str:
        """The URL of a resource of the namespace, under the name that the client uses."""
        scheme, host = self.request.scope["scheme"], self.request.headers["host"]
        return f"{scheme}://{host}/{quote(path, safe='/$')}?api-version={self.version}"

    def one(self, item: FeedEntry, status: int = 200) -> Answer:
        return Answer(status, entry(item, self.namespace.name))

    async def many(
        self, title: str, path: str, found: Sequence[Item], as_entry: Callable[[Item], FeedEntry]
    ) -> Answer:
        """The requested part of a list, built with a few entries in each turn of the loop."""
        page = parse_page(self.request)
        after = page.skip + page.top
        more = f"{self.href(path)}&$skip={after}&$top={page.top}" if after < len(found) else None
        texts: list[str] = []
        for item in found[page.skip : after]:
            texts.append(entry_text(as_entry(item), self.namespace.name))
            if len(texts) % ENTRIES_PER_TURN == 0:
                await asyncio.sleep(0)
        now_ms = self.namespace.access.now().wall_ms
        return Answer(200, feed(title, self.href(path), more, texts, now_ms=now_ms))

    def nothing(self) -> Answer:
        """The service's response for a queue or topic that does not exist: an empty feed."""
        now_ms = self.namespace.access.now().wall_ms
        href = self.href(self.target.path)
        return Answer(200, feed("Publicly Listed Services", href, None, (), now_ms=now_ms))
