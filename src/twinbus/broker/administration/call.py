"""One request, with what every desk needs to know about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

from starlette.requests import Request

from twinbus.broker.access.sas import AccessGrant, Audience
from twinbus.broker.administration.access import audience_of, check_still_granted
from twinbus.broker.administration.forward_rights import check_forwards
from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.administration.requests import body_of, page_of
from twinbus.broker.administration.targets import RequestTarget
from twinbus.broker.administration.xml_writing import FeedEntry, entry, entry_text, feed
from twinbus.broker.broker import RunningNamespace
from twinbus.broker.entities.description import QueueDescription

__all__ = ["Answer", "Call"]

Item = TypeVar("Item")

# An entry takes about 50 microseconds.
ENTRIES_PER_TURN: Final = 20


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose caller may do what it asks for."""

    request: Request
    namespace: RunningNamespace
    target: RequestTarget
    version: str
    grant: AccessGrant
    """What the caller's token allows, in this place and elsewhere."""

    async def body(self) -> bytes:
        """The body, if the caller still has the right when it is here in whole."""
        body = await body_of(self.request)
        check_still_granted(self.grant, self.namespace.access)
        return body

    def check_forwards(self, before: QueueDescription | None, after: QueueDescription) -> None:
        """Raise AccessDenied unless the caller may send to where the entity is to forward."""
        check_forwards(self.request, self.namespace.access, self.grant, before, after)

    @property
    def audience(self) -> Audience:
        """The names of the namespace, and the one that the caller used if any may be used."""
        return audience_of(self.request, self.namespace.access)

    @property
    def is_update(self) -> bool:
        """Whether the entity must exist already; raises when the condition cannot be kept."""
        if_match = self.request.headers.get("if-match")
        if if_match is not None and if_match.strip() != "*":
            raise HttpError(412, "Entities carry no version here. Send If-Match: * to change one.")
        return if_match is not None

    def check_is_missing(self, entity: object | None, what: str) -> None:
        """Refuse to create what exists; nothing may be awaited between this and the creation."""
        if entity is None:
            return
        if self.request.headers.get("if-none-match", "").strip() == "*":
            raise HttpError(
                412, f"The {what} exists already. Leave If-None-Match out to be told 409."
            )
        raise HttpError(409, f"The {what} exists already. Send If-Match: * to change it.")

    def href(self, path: str) -> str:
        """The URL of something in the namespace, under the name that the caller uses."""
        scheme, host = self.request.scope["scheme"], self.request.headers["host"]
        return f"{scheme}://{host}/{quote(path, safe='/$')}?api-version={self.version}"

    def one(self, item: FeedEntry, status: int = 200) -> Answer:
        return Answer(status, entry(item, self.namespace.name))

    async def many(
        self, title: str, path: str, found: Sequence[Item], as_entry: Callable[[Item], FeedEntry]
    ) -> Answer:
        """The part of a list that was asked for; a few entries in each turn of the loop."""
        page = page_of(self.request)
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
        """How the service says that a queue or topic does not exist: a list of nothing."""
        now_ms = self.namespace.access.now().wall_ms
        href = self.href(self.target.path)
        return Answer(200, feed("Publicly Listed Services", href, None, (), now_ms=now_ms))
