"""The messages of one task on their way to their destinations.

    rows of one Arrow batch -> grouped by destination -> links open, sizes checked
                            -> batches that fit -> several in flight -> accepted

Rule 1: ``send_all`` returns once the service holds every message durably (at least once: what was
        accepted before a task failed is sent again when Spark repeats the task).
Rule 2: before the first message of an Arrow batch leaves, every destination in it has opened its
        link and every message in it fits. A missing queue or a message that is too large costs no
        half of a batch; what earlier Arrow batches of the task held may have been sent.
Rule 3: order is kept for each destination. Only a batch that has to be sent again can fall behind
        those that were in flight with it; with one in flight none can.
Rule 4: every batch has its own deadline; what is transient is tried again until then. When nobody
        knows whether the service has it, that may send it twice: such messages are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from twinbus.core.envelope_batches import ranges_that_fit
from twinbus.core.parcel import OutgoingMessage
from twinbus.core.retry import RetryPolicy
from twinbus.drivers.port import Driver, LinkProperties, Sender
from twinbus.errors import ConfigurationError
from twinbus.pairing.few_at_once import bounded_gather
from twinbus.service_errors import MessageTooLarge, ServerBusy, ServiceError
from twinbus.spark.connector.outgoing import EncodedRow

__all__ = ["BatchSender", "SendSummary"]

# A send waits for one commit of the service; a thousand small messages fill most of its batch.
BATCH_COUNT_MAX: Final = 1_000
# Links cost memory on both sides. Rows may name any number of destinations.
LINKS_MAX: Final = 64
DESTINATIONS_AT_ONCE_MAX: Final = 16
# A retry begins early, because a restarted service is back within a second or two, and the
# deadline ends it, not a number.
RETRIES: Final = RetryPolicy(retry_total=1_000, retry_backoff_factor=0.1, retry_backoff_max=5.0)

Result = TypeVar("Result")


@dataclass(slots=True)
class SendSummary:
    """What a destination has accepted."""

    messages: int = 0
    size_bytes: int = 0
    maybe_twice: int = 0
    """Sent again after an attempt of which nobody knows how it ended."""


class BatchSender:
    """Sends through one driver. All of it runs in one event loop."""

    def __init__(
        self,
        driver: Driver,
        *,
        timeout_s: float,
        batches_in_flight_max: int,
        rng: Random | None = None,
    ) -> None:
        self.shipped: dict[str, SendSummary] = {}
        self._driver = driver
        self._timeout_s = timeout_s
        self._in_flight_max = batches_in_flight_max
        self._rng = rng or Random()
        self._facts: dict[str, LinkProperties] = {}
        self._senders: dict[str, Sender] = {}
        """The one that was used last stands last."""
        self._in_use: set[str] = set()

    async def send_all(self, messages: Sequence[EncodedRow], *, default: str | None) -> None:
        """Send one Arrow batch; ``default`` is for rows that name no destination."""
        groups = _grouped(messages, default)
        await bounded_gather(groups, self._learn, concurrency_max=DESTINATIONS_AT_ONCE_MAX)
        for path, group in groups.items():
            _check_sizes(path, group, self._facts[path])
        await bounded_gather(
            groups.items(),
            lambda item: self._ship_to(*item),
            concurrency_max=DESTINATIONS_AT_ONCE_MAX,
        )

    async def _learn(self, path: str) -> None:
        """Open the link of a destination that was not used before."""
        if path not in self._facts:
            async with self._sender(path) as sender:
                self._facts[path] = await self._patiently(
                    path, lambda left_s: sender.attach(timeout_s=left_s)
                )

    async def _ship_to(self, path: str, group: Sequence[EncodedRow]) -> None:
        limit_bytes = self._facts[path].batch_limit_bytes
        async with self._sender(path) as sender:
            await bounded_gather(
                _batches(group, limit_bytes),
                lambda batch: self._send(path, sender, batch),
                concurrency_max=self._in_flight_max,
            )

    async def _send(self, path: str, sender: Sender, batch: Sequence[EncodedRow]) -> None:
        parcels = [OutgoingMessage(each.encoded) for each in batch]
        shipped = self.shipped.setdefault(path, SendSummary())
        is_unsure = False

        async def send(left_s: float) -> None:
            nonlocal is_unsure
            try:
                await sender.send(parcels, timeout_s=left_s)
            except ServiceError as error:
                is_unsure = is_unsure or error.is_ambiguous
                raise

        await self._patiently(path, send)
        if is_unsure:
            shipped.maybe_twice += len(batch)
        shipped.messages += len(batch)
        shipped.size_bytes += sum(len(each.encoded) for each in batch)

    async def _patiently(self, path: str, attempt: Callable[[float], Awaitable[Result]]) -> Result:
        """Try until it succeeds, fails for good, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline_s, retry = loop.time() + self._timeout_s, 0
        while True:
            try:
                return await attempt(max(0.1, deadline_s - loop.time()))
            except ServiceError as error:
                retry += 1
                delay_s = RETRIES.delay_s(retry, self._rng)
                if isinstance(error, ServerBusy):
                    delay_s = max(delay_s, error.retry_after_s)
                left_s = deadline_s - loop.time()
                if not error.is_transient or delay_s >= left_s:
                    raise self._failed(path, error) from error
            await asyncio.sleep(delay_s)

    def _failed(self, path: str, error: ServiceError) -> ServiceError:
        accepted = sum(each.messages for each in self.shipped.values())
        failed = type(error)(
            f"writing to {path!r} failed, after this task had {accepted:,} messages accepted: "
            f"{error.sentence}",
            path=path,
            condition=error.condition,
            hint=error.hint,
        )
        failed.is_ambiguous = error.is_ambiguous
        return failed.used_up()

    # -- links --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _sender(self, path: str) -> AsyncIterator[Sender]:
        sender = self._senders.pop(path, None) or self._driver.sender(path)
        self._senders[path] = sender
        self._in_use.add(path)
        try:
            yield sender
        finally:
            self._in_use.discard(path)
            if len(self._senders) > LINKS_MAX:
                oldest = next(each for each in self._senders if each not in self._in_use)
                await self._senders.pop(oldest).close()


def _grouped(messages: Sequence[EncodedRow], default: str | None) -> dict[str, list[EncodedRow]]:
    groups: dict[str, list[EncodedRow]] = {}
    for message in messages:
        path = message.destination or default
        if path is None:
            raise ConfigurationError(
                "a row has no destination and no option names one",
                hint="Set the option 'queue' or 'topic' for rows whose destination is null",
            )
        groups.setdefault(path, []).append(message)
    return groups


def _check_sizes(path: str, group: Sequence[EncodedRow], facts: LinkProperties) -> None:
    for message in group:
        if len(message.encoded) > facts.message_bytes_max:
            raise MessageTooLarge(
                f"the message {message.message_id[:128]!r} has {len(message.encoded):,} bytes and "
                f"{path!r} takes {facts.message_bytes_max:,}; nothing of its Arrow batch was sent",
                path=path,
                hint="Make its body smaller, or filter it out",
            )


def _batches(group: Sequence[EncodedRow], limit_bytes: int) -> list[Sequence[EncodedRow]]:
    return [
        group[start : min(start + BATCH_COUNT_MAX, fitting.stop)]
        for fitting in ranges_that_fit((len(each.encoded) for each in group), limit_bytes)
        for start in range(fitting.start, fitting.stop, BATCH_COUNT_MAX)
    ]
