"""One request, with what every desk needs to know about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from starlette.requests import Request

from twinbus.broker.access.sas import Audience
from twinbus.broker.administration.refusals import Refused
from twinbus.broker.administration.requests import page_of
from twinbus.broker.administration.targets import Target
from twinbus.broker.administration.xml_writing import Entry, entry, feed
from twinbus.broker.broker import RunningNamespace

__all__ = ["Answer", "Call"]

Item = TypeVar("Item")


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose caller may do what it asks for."""

    request: Request
    namespace: RunningNamespace
    target: Target
    version: str

    @property
    def audience(self) -> Audience:
        return self.namespace.access.audience

    @property
    def is_update(self) -> bool:
        """Whether the entity must exist already; raises when the condition cannot be kept."""
        if_match = self.request.headers.get("if-match")
        if if_match is not None and if_match.strip() != "*":
            raise Refused(412, "Entities carry no version here. Send If-Match: * to change one.")
        return if_match is not None

    def check_is_missing(self, entity: object | None, what: str) -> None:
        """Refuse to create what exists; nothing may be awaited between this and the creation."""
        if entity is None:
            return
        if self.request.headers.get("if-none-match", "").strip() == "*":
            raise Refused(
                412, f"The {what} exists already. Leave If-None-Match out to be told 409."
            )
        raise Refused(409, f"The {what} exists already. Send If-Match: * to change it.")

    def href(self, path: str) -> str:
        """The URL of something in the namespace, under the name that the caller uses."""
        scheme, host = self.request.scope["scheme"], self.request.headers["host"]
        return f"{scheme}://{host}/{quote(path, safe='/$')}?api-version={self.version}"

    def one(self, item: Entry, status: int = 200) -> Answer:
        return Answer(status, entry(item, self.namespace.name))

    def many(
        self, title: str, path: str, found: Sequence[Item], as_entry: Callable[[Item], Entry]
    ) -> Answer:
        """The part of a list that was asked for."""
        page = page_of(self.request)
        after = page.skip + page.top
        more = f"{self.href(path)}&$skip={after}&$top={page.top}" if after < len(found) else None
        body = feed(
            title,
            self.href(path),
            more,
            [as_entry(item) for item in found[page.skip : after]],
            author=self.namespace.name,
            now_ms=self.namespace.access.now().wall_ms,
        )
        return Answer(200, body)

    def nothing(self) -> Answer:
        """How the service says that a queue or topic does not exist: a list of nothing."""
        now_ms = self.namespace.access.now().wall_ms
        href, name = self.href(self.target.path), self.namespace.name
        return Answer(
            200, feed("Publicly Listed Services", href, None, (), author=name, now_ms=now_ms)
        )
