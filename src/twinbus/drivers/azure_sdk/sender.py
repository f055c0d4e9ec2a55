"""SdkSender: sends to one queue or topic with the SDK's sender.

    outgoing messages --native?--> the SDK's own messages, unchanged
                      --bytes----> a batch of encoded messages

Rule 1: one call at a time uses the SDK's sender: it repeats a delivery id when two use it at once.
Rule 2: after a timeout or a cancellation the state of the SDK's sender is unknown: it is dropped,
        and the next call gets a new one.
Rule 3: a link that was open before the call and turns out to be lost is opened again once, and
        only if nothing was sent on it.
Rule 4: a link that cannot be opened fails every call that waits for it (sender_lock.py).
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.drivers.azure_sdk.errors import closed_error, condition_of, translate_error
from twinbus.drivers.azure_sdk.sdk_link import Mark, SdkSenderLink, Watch
from twinbus.drivers.azure_sdk.sdk_messages import (
    encode_native,
    encoded_batch,
    is_native,
    schedule,
    split_batch,
)
from twinbus.drivers.azure_sdk.sender_lock import SenderLock
from twinbus.drivers.interface import LinkProperties, note_unsent
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    AccessRefused,
    CommunicationError,
    LinkDetached,
    MessageRefused,
    OperationTimeout,
    ServiceError,
)

T = TypeVar("T")

_LOSSES: Final = (CommunicationError, LinkDetached)


class _Work(NamedTuple):
    """The kind of a call: for its errors, and to decide whether it may be tried again."""

    doing: str
    has_left: Callable[[SdkSenderLink, Mark | None], bool]
    """Whether the service may have received it."""


_SENDING: Final = _Work("Sending to", SdkSenderLink.has_sent_since)
_SCHEDULING: Final = _Work("Scheduling messages in", SdkSenderLink.has_asked_since)
_CANCELLING: Final = _Work("Cancelling scheduled messages in", SdkSenderLink.has_asked_since)
_OPENING: Final = _Work("Opening a link to", SdkSenderLink.has_only_opened)


class SdkSender:
    """The Sender interface over the SDK."""

    def __init__(
        self, path: str, make: Callable[[], Any], *, forget: Callable[[SdkSender], object]
    ) -> None:
        self.path = path
        self._make = make
        self._forget = forget
        self._link: SdkSenderLink | None = None
        self._last_facts: LinkProperties | None = None
        """Those of the last link that is gone."""
        self._lock = SenderLock()
        self._watch = Watch(self._drop_link)
        self._is_closed = False

    async def send(self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        if not outgoing_messages:
            return
        outgoing = self._outgoing(outgoing_messages)

        def send(link: SdkSenderLink) -> Awaitable[None]:
            return link.send(outgoing, timeout_s)

        try:
            await self._call(send, _SENDING, timeout_s)
        except CommunicationError as error:
            _check_encodable(outgoing_messages, error)
            raise

    async def schedule(
        self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float
    ) -> list[int]:
        if not outgoing_messages:
            return []
        messages = [
            each for outgoing_message in outgoing_messages for each in _encoded(outgoing_message)
        ]
        return await self._call(
            lambda link: schedule(link.sdk, messages, timeout_s=timeout_s),
            _SCHEDULING,
            timeout_s,
        )

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        numbers = list(sequence_numbers)
        await self._call(
            lambda link: link.sdk.cancel_scheduled_messages(numbers, timeout=timeout_s),
            _CANCELLING,
            timeout_s,
        )

    async def attach(self, *, timeout_s: float) -> LinkProperties:
        async def attach(link: SdkSenderLink) -> LinkProperties:
            await link.open()
            facts = link.facts
            assert facts is not None
            return facts

        return await self._call(attach, _OPENING, timeout_s)

    @property
    def facts(self) -> LinkProperties | None:
        return (self._link and self._link.facts) or self._last_facts

    async def close(self) -> None:
        self._is_closed = True
        self._forget(self)
        self._watch.stop()
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def _outgoing(self, outgoing_messages: Sequence[OutgoingMessage]) -> Any:
        """What the SDK sends: its own messages if all are, otherwise a batch of bytes."""
        if len(outgoing_messages) == 1 and is_native(outgoing_messages[0].native):
            return outgoing_messages[0].native
        natives = [outgoing_message.native for outgoing_message in outgoing_messages]
        if all(map(_is_single, natives)):
            return natives
        try:
            return encoded_batch(
                [
                    each
                    for outgoing_message in outgoing_messages
                    for each in _encoded(outgoing_message)
                ]
            )
        except (TypeError, ValueError) as error:
            raise _refused(self.path, error) from error

    # -- one call ---------------------------------------------------------------------------

    async def _call(
        self, operation: Callable[[SdkSenderLink], Awaitable[T]], work: _Work, timeout_s: float
    ) -> T:
        """An attempt under the lock, and one more if the link was lost before anything was sent.

        In one piece: every further coroutine around the SDK's costs time at each of its waits.
        """
        now_s = asyncio.get_running_loop().time()
        until_s = now_s + timeout_s
        link: SdkSenderLink | None = None
        mark: Mark | None = None
        try:
            if not self._lock.take():
                await self._wait_for_lock(until_s)
            try:
                with self._watch.until(until_s):
                    while True:
                        link = self._link
                        if link is None or not link.is_quiet(now_s):
                            link = await self._usable_link()
                        mark = link.mark()
                        try:
                            return await operation(link)
                        except BaseException as error:
                            self._fail(error, link, mark, work)
            finally:
                self._lock.release()
        except ServiceError:
            raise  # The service's own response, which can be an OperationTimeout.
        except TimeoutError as error:
            failure = OperationTimeout(
                f"{work.doing} {self.path!r} timed out after {timeout_s:g} s", path=self.path
            )
            failure.is_ambiguous = link is not None and work.has_left(link, mark)
            raise failure from error

    async def _wait_for_lock(self, until_s: float) -> None:
        try:
            async with asyncio.timeout_at(until_s):
                await self._lock.wait()
        except asyncio.CancelledError as cancelled:
            note_unsent(cancelled)
            raise

    async def _usable_link(self) -> SdkSenderLink:
        if self._is_closed:
            raise closed_error(f"The sender to {self.path!r}", self.path)
        if self._link is not None and not await self._link.poll():
            self._drop_link()
        if self._link is None or self._link.is_dropped:
            self._link = SdkSenderLink(self._make())
        return self._link

    def _fail(
        self, error: BaseException, link: SdkSenderLink, mark: Mark | None, work: _Work
    ) -> None:
        """Raise the error, unless the call may be tried once more on a new link."""
        if not isinstance(error, Exception):
            if isinstance(error, asyncio.CancelledError) and not work.has_left(link, mark):
                note_unsent(error)
            self._drop_link()
            raise error
        failure = self._failed(error, link, mark, work)
        if mark is None and isinstance(failure, _LOSSES) and not failure.is_ambiguous:
            self._lock.fail(partial(copy.copy, failure))
        if mark is None or failure.is_ambiguous or not isinstance(failure, _LOSSES):
            raise failure from error

    def _failed(
        self, error: Exception, link: SdkSenderLink, mark: Mark | None, work: _Work
    ) -> ServiceError:
        was_sent = work.has_left(link, mark)
        failure = translate_error(
            error,
            doing=work.doing,
            path=self.path,
            was_sent=was_sent,
            link_error=link.link_error,
        )
        if isinstance(failure, AccessRefused) and mark is not None:
            # The link was authorized: a new one, with a new token, shows whether it still is, or
            # whether the key is revoked (P7). A response to the send is not ambiguous.
            was_sent = was_sent and link.link_error is not None
            failure = LinkDetached(
                failure.sentence, path=self.path, condition=failure.condition, hint=failure.hint
            )
        if isinstance(failure, LinkDetached):
            failure.is_ambiguous = was_sent
        if isinstance(failure, _LOSSES) or _is_unsettled(error, link):
            self._drop_link()
        return failure

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._last_facts = link.facts or self._last_facts
            link.drop()


def _is_single(native: object) -> bool:
    return is_native(native) and not isinstance(native, ServiceBusMessageBatch)


def _encoded(outgoing_message: OutgoingMessage) -> list[bytes]:
    if isinstance(outgoing_message.native, ServiceBusMessageBatch):
        return split_batch(outgoing_message.native)
    if is_native(outgoing_message.native):
        return [encode_native(outgoing_message.native)]
    return [outgoing_message.encoded]


def _is_unsettled(error: Exception, link: SdkSenderLink) -> bool:
    """Whether the SDK's sender may still wait for a response of the service."""
    is_silence = isinstance(error, OperationTimeoutError) and not condition_of(error)
    return is_silence or link.is_dropped


def _check_encodable(outgoing_messages: Sequence[OutgoingMessage], failure: ServiceError) -> None:
    """The SDK reports "handler failed" for a message that it cannot encode, as for an invalid frame
    of the peer: only encoding it again distinguishes the two."""
    if failure.condition or failure.is_ambiguous:
        return
    try:
        for outgoing_message in outgoing_messages:
            _encoded(outgoing_message)
    except Exception as error:
        raise _refused(failure.path, error) from failure


def _refused(path: str, error: Exception) -> MessageRefused:
    return MessageRefused(
        f"A message to {path!r} cannot be encoded: {type(error).__name__}",
        path=path,
        hint="Use values of types that AMQP supports",
    )
