"""The stock ``azure-servicebus`` client in its two flavours, behind one shape.

A scenario is written once, against the aio shape, and runs with both clients: the aio one as
it is, the sync one with every call in a thread. What a test opens is closed when it ends, all
of it at once.

Retries are off unless a test asks for them: a broker that needs the client's second attempt
should not pass.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import azure.servicebus
import azure.servicebus.aio
from azure.servicebus import ServiceBusReceivedMessage

SEND_TIMEOUT_S = 20.0
"""A send without a timeout waits for ever; this one only says that something is broken."""
RECEIVE_TIMEOUT_S = 20.0
SILENCE_S = 0.5
"""How long a receiver listens before a test believes that nothing comes."""

_END = object()


class Brisk:
    """A module whose sleep() is short."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def sleep(self, seconds: float) -> Any:
        return self._module.sleep(min(seconds, 0.005))


class InThreads:
    """A sync object of the SDK with the aio shape."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.wrapped, name)
        if not callable(value):
            return value

        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(value, *arguments, **options)

        return call

    async def __aiter__(self) -> AsyncIterator[Any]:
        messages = iter(self.wrapped)
        while (message := await asyncio.to_thread(next, messages, _END)) is not _END:
            yield message


class Sdk:
    """One flavour of the client; opens senders and receivers and closes them in the end."""

    def __init__(self, flavour: str, connection_string: str) -> None:
        self.flavour = flavour
        self._connection_string = connection_string
        self._module = azure.servicebus if flavour == "sync" else azure.servicebus.aio
        self._clients: list[Any] = []
        self._opened: list[Any] = []

    def client(self, connection_string: str | None = None, **options: Any) -> Any:
        """A client of its own, closed with the others."""
        made = self._module.ServiceBusClient.from_connection_string(
            connection_string or self._connection_string, **{"retry_total": 0, **options}
        )
        return self._kept_client(made)

    def client_with(self, host: str, credential: Any, **options: Any) -> Any:
        """A client for a host and a credential object; plain TCP, as the emulator flag says."""
        made = self._module.ServiceBusClient(
            host, credential, **{"retry_total": 0, "use_tls": False, **options}
        )
        return self._kept_client(made)

    def _kept_client(self, made: Any) -> Any:
        self._clients.append(made)
        return made

    def sender(self, queue: str, *, client: Any = None, **options: Any) -> Any:
        return self._kept((client or self.client()).get_queue_sender(queue, **options))

    def receiver(self, queue: str, *, client: Any = None, **options: Any) -> Any:
        return self._kept((client or self.client()).get_queue_receiver(queue, **options))

    def dead_letters(self, queue: str, **options: Any) -> Any:
        return self.receiver(queue, sub_queue="deadletter", **options)

    def topic_sender(self, topic: str, *, client: Any = None, **options: Any) -> Any:
        return self._kept((client or self.client()).get_topic_sender(topic, **options))

    def subscription(self, topic: str, name: str, *, client: Any = None, **options: Any) -> Any:
        """A receiver of a subscription."""
        made = (client or self.client()).get_subscription_receiver(topic, name, **options)
        return self._kept(made)

    def _kept(self, made: Any) -> Any:
        shaped = InThreads(made) if self.flavour == "sync" else made
        self._opened.append(shaped)
        return shaped

    async def send(self, queue: str, *messages: Any) -> None:
        """Send messages one by one on a sender of their own."""
        sender = self.sender(queue)
        for message in messages:
            await sender.send_messages(message, timeout=SEND_TIMEOUT_S)

    async def publish(self, topic: str, *messages: Any) -> None:
        """Send messages one by one to a topic, on a sender of their own."""
        sender = self.topic_sender(topic)
        for message in messages:
            await sender.send_messages(message, timeout=SEND_TIMEOUT_S)

    async def close(self) -> None:
        await asyncio.gather(*map(_close, self._opened), return_exceptions=True)
        for client in self._clients:
            closing = client.close()
            if closing is not None:
                await closing
        # The client forgets to close the socket of a connection that the broker ended. Let
        # Python find it now, not in a test of somebody else.
        self._opened.clear()
        self._clients.clear()
        gc.collect()


async def _close(opened: Any) -> None:
    """Close a sender or receiver without the second that it waits for its keep-alive."""
    handler = unwrapped(opened)._handler
    keep_alive = getattr(handler, "_keep_alive_thread", None)
    if keep_alive is not None:
        handler._keep_alive_thread = None
    await opened.close()
    if isinstance(keep_alive, asyncio.Future):
        keep_alive.cancel()
        await asyncio.gather(keep_alive, return_exceptions=True)


def unwrapped(opened: Any) -> Any:
    """The client's own object, for the few tests that must reach into it."""
    return opened.wrapped if isinstance(opened, InThreads) else opened


async def receive(
    receiver: Any, count: int, timeout_s: float = RECEIVE_TIMEOUT_S
) -> list[ServiceBusReceivedMessage]:
    """Receive until ``count`` messages are here; fewer only when the time is over."""
    received: list[ServiceBusReceivedMessage] = []
    deadline_s = time.monotonic() + timeout_s
    # The client opens its link within this time too, which can take long on a busy machine.
    while len(received) < count and (left_s := deadline_s - time.monotonic()) > 0:
        received += await receiver.receive_messages(count - len(received), max_wait_time=left_s)
    return received


async def receive_one(receiver: Any) -> ServiceBusReceivedMessage:
    (message,) = await receive(receiver, 1)
    return message


async def opened(receiver: Any) -> Any:
    """The receiver with its link open, so that a short wait is spent on waiting only."""
    await receiver.peek_messages(1)
    return receiver


async def nothing_comes(receiver: Any) -> bool:
    """Whether a receiver that listens for a while hears nothing."""
    await opened(receiver)
    return await receiver.receive_messages(10, max_wait_time=SILENCE_S) == []


async def eventually(
    holds: Callable[[], Awaitable[bool]], timeout_s: float = RECEIVE_TIMEOUT_S
) -> bool:
    """Ask again and again until it holds or the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while not await holds():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.05)
    return True


def body(message: Any) -> bytes:
    """The data of a message, whatever number of sections it came in."""
    return b"".join(message.body)


def bodies(messages: list[Any]) -> list[str]:
    return [body(message).decode() for message in messages]
