"""A way into one queue or topic, through a sender of the SDK.

Rule 1: one call at a time has the SDK's sender: it repeats a delivery id when two use it at once.
Rule 2: after a timeout or a cancellation nobody knows where the SDK's sender is: it is dropped,
        and the next call has a new one.
Rule 3: a link that was there before the call and turns out to be gone is opened again once, and
        only if nothing had left on it.
Rule 4: a link that cannot be opened fails every call that waits for its turn (sender_lock.py).

    parcels --native?--> the SDK's own messages, as they are
            --bytes----> a sealed batch
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.drivers.azure_sdk.errors import closed, condition_of, translated
from twinbus.drivers.azure_sdk.sdk_link import Mark, SdkSenderLink, Watch
from twinbus.drivers.azure_sdk.sdk_messages import (
    encode_native,
    is_native,
    schedule,
    sealed_batch,
    split_batch,
)
from twinbus.drivers.azure_sdk.sender_lock import ReceiverTurn
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
    """What a call is about: for its errors, and for what may be tried again."""

    doing: str
    has_left: Callable[[SdkSenderLink, Mark | None], bool]
    """Whether the service may have seen it."""


_SENDING: Final = _Work("sending to", SdkSenderLink.has_sent_since)
_SCHEDULING: Final = _Work("scheduling in", SdkSenderLink.has_asked_since)
_CANCELLING: Final = _Work("cancelling in", SdkSenderLink.has_asked_since)
_OPENING: Final = _Work("opening", SdkSenderLink.has_only_opened)


class SdkSender:
    """The port's Sender."""

    def __init__(
        self, path: str, make: Callable[[], Any], *, forget: Callable[[SdkSender], object]
    ) -> None:
        self.path = path
        self._make = make
        self._forget = forget
        self._line: SdkSenderLink | None = None
        self._last_facts: LinkProperties | None = None
        """Those of the last link that is gone."""
        self._turn = ReceiverTurn()
        self._watch = Watch(self._let_go)
        self._is_closed = False

    async def send(self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        if not outgoing_messages:
            return
        outgoing = self._outgoing(outgoing_messages)

        def send(line: SdkSenderLink) -> Awaitable[None]:
            return line.send(outgoing, timeout_s)

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
            lambda line: schedule(line.sdk, messages, timeout_s=timeout_s),
            _SCHEDULING,
            timeout_s,
        )

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        numbers = list(sequence_numbers)
        await self._call(
            lambda line: line.sdk.cancel_scheduled_messages(numbers, timeout=timeout_s),
            _CANCELLING,
            timeout_s,
        )

    async def attach(self, *, timeout_s: float) -> LinkProperties:
        async def attach(line: SdkSenderLink) -> LinkProperties:
            await line.open()
            facts = line.facts
            assert facts is not None
            return facts

        return await self._call(attach, _OPENING, timeout_s)

    @property
    def facts(self) -> LinkProperties | None:
        return (self._line and self._line.facts) or self._last_facts

    async def close(self) -> None:
        self._is_closed = True
        self._forget(self)
        self._watch.stop()
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    def _outgoing(self, outgoing_messages: Sequence[OutgoingMessage]) -> Any:
        """What the SDK is handed: its own messages if they are all that, else a batch of bytes."""
        if len(outgoing_messages) == 1 and is_native(outgoing_messages[0].native):
            return outgoing_messages[0].native
        natives = [outgoing_message.native for outgoing_message in outgoing_messages]
        if all(map(_is_single, natives)):
            return natives
        try:
            return sealed_batch(
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
        """An attempt in our turn, and one more if the link was gone before anything left on it.

        In one piece: every further coroutine around the SDK's is paid for at each of its waits.
        """
        now_s = asyncio.get_running_loop().time()
        until_s = now_s + timeout_s
        line: SdkSenderLink | None = None
        mark: Mark | None = None
        try:
            if not self._turn.take():
                await self._wait_for_turn(until_s)
            try:
                with self._watch.until(until_s):
                    while True:
                        line = self._line
                        if line is None or not line.is_quiet(now_s):
                            line = await self._usable_line()
                        mark = line.mark()
                        try:
                            return await operation(line)
                        except BaseException as error:
                            self._fail(error, line, mark, work)
            finally:
                self._turn.release()
        except ServiceError:
            raise  # The service's own answer, which can be an OperationTimeout.
        except TimeoutError as error:
            failure = OperationTimeout(
                f"{work.doing} {self.path!r} had no answer within {timeout_s:g} s", path=self.path
            )
            failure.is_ambiguous = line is not None and work.has_left(line, mark)
            raise failure from error

    async def _wait_for_turn(self, until_s: float) -> None:
        try:
            async with asyncio.timeout_at(until_s):
                await self._turn.wait()
        except asyncio.CancelledError as cancelled:
            note_unsent(cancelled)
            raise

    async def _usable_line(self) -> SdkSenderLink:
        if self._is_closed:
            raise closed(f"the sender to {self.path!r}", self.path)
        if self._line is not None and not await self._line.look():
            self._let_go()
        if self._line is None or self._line.is_dropped:
            self._line = SdkSenderLink(self._make())
        return self._line

    def _fail(
        self, error: BaseException, line: SdkSenderLink, mark: Mark | None, work: _Work
    ) -> None:
        """Raise what went wrong, unless it may be tried once more on a new link."""
        if not isinstance(error, Exception):
            if isinstance(error, asyncio.CancelledError) and not work.has_left(line, mark):
                note_unsent(error)
            self._let_go()
            raise error
        failure = self._failed(error, line, mark, work)
        if mark is None and isinstance(failure, _LOSSES) and not failure.is_ambiguous:
            self._turn.fail(partial(copy.copy, failure))
        if mark is None or failure.is_ambiguous or not isinstance(failure, _LOSSES):
            raise failure from error

    def _failed(
        self, error: Exception, line: SdkSenderLink, mark: Mark | None, work: _Work
    ) -> ServiceError:
        was_sent = work.has_left(line, mark)
        failure = translated(
            error,
            doing=work.doing,
            path=self.path,
            was_sent=was_sent,
            link_error=line.link_error,
        )
        if isinstance(failure, AccessRefused) and mark is not None:
            # The link had the right to be there: a new one, with a new token, tells whether it
            # still has it, or whether the key is gone (P7). An answer leaves no doubt.
            was_sent = was_sent and line.link_error is not None
            failure = LinkDetached(
                failure.sentence, path=self.path, condition=failure.condition, hint=failure.hint
            )
        if isinstance(failure, LinkDetached):
            failure.is_ambiguous = was_sent
        if isinstance(failure, _LOSSES) or _is_unsettled(error, line):
            self._let_go()
        return failure

    def _let_go(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._last_facts = line.facts or self._last_facts
            line.drop()


def _is_single(native: object) -> bool:
    return is_native(native) and not isinstance(native, ServiceBusMessageBatch)


def _encoded(outgoing_message: OutgoingMessage) -> list[bytes]:
    if isinstance(outgoing_message.native, ServiceBusMessageBatch):
        return split_batch(outgoing_message.native)
    if is_native(outgoing_message.native):
        return [encode_native(outgoing_message.native)]
    return [outgoing_message.encoded]


def _is_unsettled(error: Exception, line: SdkSenderLink) -> bool:
    """Whether the SDK's sender may still wait for an answer that the service owes it."""
    is_silence = isinstance(error, OperationTimeoutError) and not condition_of(error)
    return is_silence or line.is_dropped


def _check_encodable(outgoing_messages: Sequence[OutgoingMessage], failure: ServiceError) -> None:
    """The SDK says "handler failed" of a message that it cannot encode, as of a peer that talks
    nonsense: nothing but an attempt tells the two apart."""
    if failure.condition or failure.is_ambiguous:
        return
    try:
        for outgoing_message in outgoing_messages:
            _encoded(outgoing_message)
    except Exception as error:
        raise _refused(failure.path, error) from failure


def _refused(path: str, error: Exception) -> MessageRefused:
    return MessageRefused(
        f"a message to {path!r} cannot be encoded: {type(error).__name__}",
        path=path,
        hint="Use values that AMQP has types for",
    )
