"""What the driver uses of the SDK's inside, by name: a new version without it fails here, loudly.

The tests beside this one show that it still means the same.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.constants import ConnectionState, LinkState
from azure.servicebus._pyamqp.error import AMQPConnectionError, ErrorCondition
from azure.servicebus.aio import _servicebus_receiver_async, _servicebus_sender_async
from azure.servicebus.aio._async_utils import close_handler_for_cleanup

from twinbus.drivers.azure_sdk import ServiceBusDriver, sdk_link
from twinbus.encoding.transit import OutgoingMessage

TIMEOUT_S = 20.0

HANDLER = "_connection _link _link_credit _mgmt_links _keep_alive_thread _shutdown"
LINK = (
    "_error state flow current_link_credit delivery_count initial_delivery_count "
    "remote_max_message_size"
)
INSIDE = {
    "sender": "_handler _running _close_handler _max_message_size_on_link _max_batch_size_on_link "
    "_mgmt_request_response_with_retry __aenter__ _send _handle_exception _create_handler",
    "sender._handler": f"{HANDLER} client_ready_async",
    "sender._handler._link": LINK,
    "sender._handler._connection": "_error state listen _transport",
    "sender._handler._connection._transport": "reader writer close",
    "sender._handler._connection._transport.reader": "_buffer _eof _exception",
    "receiver": "_handler _running _close_handler _receive_context session "
    "_build_received_message _mgmt_request_response_with_retry _await_settlement_outcome "
    "_settle_message_via_mgmt_link _renew_locks",
    "receiver._handler": f"{HANDLER} _received_messages client_ready_async",
    "receiver._handler._link": f"{LINK} _incoming_transfer _received_payload _first_frame "
    "_pending_dispositions _outgoing_disposition _received_delivery_tags",
    "message": "_delivery_id _delivery_tag _settled _expiry",
}


def missing(roots: dict[str, Any]) -> list[str]:
    found = []
    for path, names in INSIDE.items():
        root, *rest = path.split(".")
        inside = roots[root]
        for name in rest:
            inside = getattr(inside, name)
        found += [f"{path}.{name}" for name in names.split() if not hasattr(inside, name)]
    return found


async def test_the_inside_of_the_sdk_is_as_we_know_it(driver: ServiceBusDriver, queue: str) -> None:
    """M10: names, and the two states that a line in use is in."""
    sender, receiver = driver.sender(queue), driver.receiver(queue)
    await sender.send([OutgoingMessage(native=ServiceBusMessage("x"))], timeout_s=TIMEOUT_S)
    [received] = await receiver.receive(1, wait_s=TIMEOUT_S)
    assert sender._link is not None and receiver._link is not None
    lines = {"sender": sender._link.sdk, "receiver": receiver._link.sdk}
    roots = {**lines, "message": received.handle}
    told = f"azure-servicebus {version('azure-servicebus')} has changed: {missing(roots)}"
    assert missing(roots) == [], told
    for sdk in lines.values():
        assert sdk._handler._connection.state is ConnectionState.OPENED
        assert sdk._handler._link.state is LinkState.ATTACHED


async def test_nothing_is_left_behind_by_a_line_that_was_dropped(
    driver: ServiceBusDriver, queue: str
) -> None:
    """L2: neither its keep-alive nor its socket."""
    sender = driver.sender(queue)
    await sender.attach(timeout_s=TIMEOUT_S)
    line = sender._link
    assert line is not None
    handler = line.sdk._handler
    keep_alive, writer = handler._keep_alive_thread, handler._connection._transport.writer
    line.drop()
    line.drop()
    assert writer.transport.is_closing() and line.is_dropped and not line.is_open
    assert keep_alive.cancelling()
    await sender.attach(timeout_s=TIMEOUT_S)


async def test_a_line_whose_end_is_read_before_a_send_is_replaced(
    driver: ServiceBusDriver, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P0: nothing had left on it, so the caller hears nothing of it."""
    sender = driver.sender(queue)
    await sender.send([OutgoingMessage(native=ServiceBusMessage("one"))], timeout_s=TIMEOUT_S)
    first = sender._link
    assert first is not None

    async def end(**_options: object) -> None:
        raise AMQPConnectionError(ErrorCondition.SocketError, description="it has gone")

    connection = first.sdk._handler._connection
    monkeypatch.setattr(connection, "listen", end)
    monkeypatch.setattr(sdk_link, "_has_input", lambda asked: asked is connection)
    await sender.send([OutgoingMessage(native=ServiceBusMessage("two"))], timeout_s=TIMEOUT_S)
    assert sender._link is not first


@pytest.mark.parametrize("what", ["sender", "receiver"])
async def test_a_link_opens_as_fast_as_its_frames_arrive(
    driver: ServiceBusDriver, queue: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P25: the SDK takes one frame of about ten and then sleeps for 50 ms, which is half a second
    before the first message of an outage is in the backlog."""
    slept: list[float] = []

    class Noted:
        """asyncio, as the SDK sees it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, delay_s: float) -> None:
            slept.append(delay_s)
            await asyncio.sleep(delay_s)

    for module in (_servicebus_sender_async, _servicebus_receiver_async):
        monkeypatch.setattr(module, "asyncio", Noted())
    if what == "sender":
        await driver.sender(queue).attach(timeout_s=TIMEOUT_S)
    else:
        await driver.receiver(queue).receive(1, wait_s=0.01)
    assert slept == []


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_an_opening_that_was_cancelled_leaves_no_error_that_nobody_hears(
    is_cancelled: bool,
) -> None:
    """P0: asyncio writes the traceback of a task that failed after its end was not waited for."""
    opening: Any = object.__new__(sdk_link.SdkLink)
    opening.sdk = SimpleNamespace(_running=False)
    may_fail = asyncio.Event()

    async def is_ready() -> bool:
        with suppress(asyncio.CancelledError):
            await may_fail.wait()
        raise AMQPConnectionError(ErrorCondition.SocketError, description="lost")

    task = asyncio.create_task(opening._ready(is_ready))
    await asyncio.sleep(0)
    if is_cancelled:
        task.cancel()
    may_fail.set()
    with pytest.raises(asyncio.CancelledError if is_cancelled else AMQPConnectionError):
        await task


async def test_a_link_is_given_up_although_no_time_is_left(
    driver: ServiceBusDriver, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P25: an opening that takes all its time left thirty lines of the SDK in the log."""
    sender = driver.sender(queue)
    await sender.attach(timeout_s=TIMEOUT_S)
    assert sender._link is not None
    sdk = sender._link.sdk
    gone_by_s = time.monotonic() - 1
    await close_handler_for_cleanup(sdk._close_handler(), gone_by_s)
    assert sdk._handler is None
    assert not caplog.records
