"""Whether the syphon that an application hosts has the claims that it needs (P18).

    Listen on every backlog queue     found out by a peek, which takes nothing
    Send on its destinations          by a link to each that is known: those that the application
                                      sends to itself, and those that are allowed by their names

Rule 1: only a refusal counts. Whatever else is answered says nothing about claims, and the syphon
        reports it when it meets it.
Rule 2: the claims are those of the factories' credentials. A syphon that is given credentials of
        its own (SyphonHosting) is not judged by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from twinbus.core.destinations import check_destination
from twinbus.drivers.port import Driver
from twinbus.pairing.few_at_once import bounded_gather
from twinbus.service_errors import AccessRefused, EnvelopeError, ServiceError

__all__ = ["MissingClaim", "known_destinations", "missing_listen", "missing_send"]

AT_ONCE_MAX: Final = 4
ASK_TIMEOUT_S: Final = 5.0
# The whole question is worth no more: without an answer the syphon reports what it meets.
TIMEOUT_S: Final = 10.0
_WILDCARDS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class MissingClaim:
    """A claim that a syphon needs and does not have."""

    namespace: str
    path: str
    claim: str

    def error(self) -> AccessRefused:
        what = "receive from" if self.claim == "Listen" else "deliver to"
        return AccessRefused(
            f"the claim {self.claim} is missing for {self.path!r} in the namespace "
            f"{self.namespace}, so the syphon of this application could not {what} it",
            path=self.path,
            hint=f"Give the rule or the identity {self.claim}, or leave enable_syphon to another "
            "application",
        )


def known_destinations(
    paths: Sequence[str], allowed: Sequence[str], primary_name: str
) -> tuple[str, ...]:
    """The entities that the syphon delivers to, as far as they are known by their names."""
    named = [each for each in allowed if not _WILDCARDS & set(each)]
    found: list[str] = []
    for path in (*paths, *named):
        with suppress(EnvelopeError):
            found.append(check_destination(path, allowed=allowed, primary_name=primary_name))
    return tuple(dict.fromkeys(found))


async def missing_listen(secondary: Driver, queues: Sequence[str]) -> list[MissingClaim]:
    """The backlog queues that may not be received from."""

    async def peek(path: str) -> None:
        receiver = secondary.receiver(path)
        try:
            await receiver.peek(1, timeout_s=ASK_TIMEOUT_S)
        finally:
            await receiver.close()

    return await _missing(secondary, queues, "Listen", peek)


async def missing_send(primary: Driver, destinations: Sequence[str]) -> list[MissingClaim]:
    """The destinations that may not be sent to."""

    async def attach(path: str) -> None:
        sender = primary.sender(path)
        try:
            await sender.attach(timeout_s=ASK_TIMEOUT_S)
        finally:
            await sender.close()

    return await _missing(primary, destinations, "Send", attach)


async def _missing(
    driver: Driver,
    paths: Sequence[str],
    claim: str,
    ask: Callable[[str], Coroutine[Any, Any, None]],
) -> list[MissingClaim]:
    found: list[MissingClaim] = []

    async def asked(path: str) -> None:
        try:
            await ask(path)
        except AccessRefused:
            found.append(MissingClaim(str(driver.address), path, claim))
        except ServiceError:
            pass  # Rule 1.

    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT_S):
            await bounded_gather(paths, asked, concurrency_max=AT_ONCE_MAX)
    return sorted(found, key=lambda each: paths.index(each.path))
