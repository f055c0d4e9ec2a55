"""Sends to a service that does anything but take them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.support.parcels import parcel
from tests.unit.drivers.amqp.rogue import Rogue, Visit
from twinbus.amqp.delivery_states import Accepted, Error, Modified, Received, Rejected, Released
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.events import DispositionReceived
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.amqp.errors import CONDITIONS
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    LinkDetached,
    MessageTooLarge,
    OperationTimeout,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)

SOON_S = 20.0


async def error_of(driver: AmqpDriver, timeout_s: float = SOON_S) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await driver.sender("orders").send([parcel(b"x")], timeout_s=timeout_s)
    return caught.value


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x00\x09\x01", b"\xff" * 4096, b"AMQP\x03"],
)
async def test_garbage_instead_of_amqp(rogue: Rogue, driver: AmqpDriver, greeting: bytes) -> None:
    rogue.greeting = greeting
    error = await error_of(driver, timeout_s=0.5 if len(greeting) < 8 else SOON_S)
    assert isinstance(error, CommunicationError | OperationTimeout)
    assert not error.is_ambiguous and error.path == "orders"


async def test_a_service_that_never_says_a_word(rogue: Rogue, driver: AmqpDriver) -> None:
    rogue.greeting = b""
    began = time.monotonic()
    error = await error_of(driver, timeout_s=0.3)
    assert isinstance(error, OperationTimeout) and not error.is_ambiguous
    assert time.monotonic() - began < 5
    # The attempt went with the one who waited for it.
    await asyncio.sleep(0.05)
    assert all(visit.is_over for visit in rogue.visits)


@pytest.mark.parametrize("condition", sorted(CONDITIONS))
async def test_a_refused_link_says_why(rogue: Rogue, driver: AmqpDriver, condition: str) -> None:
    rogue.on_attach = lambda _visit, link: link.refuse(AmqpError(condition, "because"))
    error = await error_of(driver)
    assert type(error) is CONDITIONS[condition]
    assert error.condition == condition and "because" in str(error)
    assert not error.is_ambiguous


async def test_a_word_that_we_do_not_know_is_the_service_breaking(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    def reject(visit: Visit, event: Any) -> None:
        visit.settle(event, Rejected(Error("com.example:novelty", "line\x00one\nline two" * 90)))

    rogue.on_delivery = reject
    error = await error_of(driver)
    assert type(error) is ServiceInternalError and error.condition == "com.example:novelty"
    assert "\n" not in str(error) and len(str(error)) < 500


@pytest.mark.parametrize("condition", sorted(CONDITIONS))
async def test_a_rejected_message_says_why(
    rogue: Rogue, driver: AmqpDriver, condition: str
) -> None:
    rogue.on_delivery = lambda visit, event: visit.settle(
        event, Rejected(Error(condition, "because"))
    )
    error = await error_of(driver)
    assert type(error) is CONDITIONS[condition]
    assert error.condition == condition and "because" in str(error)


@pytest.mark.parametrize("state", [Released(), Modified(delivery_failed=True), Rejected(), None])
async def test_only_accepted_is_a_success(rogue: Rogue, driver: AmqpDriver, state: Any) -> None:
    rogue.on_delivery = lambda visit, event: visit.settle(event, state)
    error = await error_of(driver)
    assert isinstance(error, ServiceInternalError)
    assert error.is_ambiguous is (state is None)


async def test_a_state_that_is_no_outcome_is_waited_through(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    def dally(visit: Visit, event: Any) -> None:
        visit.settle(event, Received(0, 0), settled=False)
        visit.settle(event, None, settled=False)
        visit.settle(event, Accepted())

    rogue.on_delivery = dally
    await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)


async def test_a_service_that_settles_second_hears_from_us(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    heard: list[DispositionReceived] = []
    rogue.on_delivery = lambda visit, event: visit.settle(event, Accepted(), settled=False)
    rogue.on_disposition = lambda _visit, event: heard.append(event)
    await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)
    await asyncio.sleep(0.05)
    assert [(event.role, event.settled) for event in heard] == [(False, True)]


async def test_one_answer_may_be_for_all_there_will_ever_be(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    # Given fifty sends, which are answered once, with a range of two thousand million
    seen: list[Any] = []

    def collect(visit: Visit, event: Any) -> None:
        seen.append(event)
        if len(seen) == 50:
            visit.disposition(event, 0, 0x7FFFFFFE, Accepted())

    rogue.on_delivery = collect
    sender = driver.sender("orders")

    # Then all succeed, at once
    await asyncio.gather(*(sender.send([parcel(b"x")], timeout_s=SOON_S) for _ in range(50)))


@pytest.mark.parametrize("condition", sorted(CONDITIONS))
async def test_a_link_that_dies_with_a_message_on_it_says_why(
    rogue: Rogue, driver: AmqpDriver, condition: str
) -> None:
    rogue.on_delivery = lambda _visit, event: event.link.detach(AmqpError(condition, "because"))
    error = await error_of(driver)
    expected = CONDITIONS[condition]
    if expected is AccessRefused:
        # It had the right when it was opened: the next link tells whether that is over (P7)
        expected = LinkDetached
        assert error.is_ambiguous
    assert type(error) is expected


async def test_of_many_messages_none_is_blamed_for_the_death_of_a_link(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    # Given a service that takes the link away because one message of two is too large
    seen: list[Any] = []

    def detach(_visit: Visit, event: Any) -> None:
        seen.append(event)
        if len(seen) == 2:
            event.link.detach(AmqpError(Condition.LINK_MESSAGE_SIZE_EXCEEDED, "too large"))

    rogue.on_delivery = detach
    sender = driver.sender("orders")
    await sender.attach(timeout_s=SOON_S)

    # Then nobody knows which: both may try again
    errors = await asyncio.gather(
        *(sender.send([parcel(b"x")], timeout_s=SOON_S) for _ in range(2)), return_exceptions=True
    )
    assert [type(error) for error in errors] == [LinkDetached, LinkDetached]
    assert errors[0] is not errors[1]


async def test_too_much_is_not_even_sent(rogue: Rogue, driver: AmqpDriver) -> None:
    sender = driver.sender("orders")
    await sender.attach(timeout_s=SOON_S)
    with pytest.raises(MessageTooLarge):
        await sender.send([parcel(bytes(270_000))], timeout_s=SOON_S)
    with pytest.raises(MessageTooLarge):
        await sender.send([parcel(bytes(100_000))] * 3, timeout_s=SOON_S)
    assert rogue.taken == []


async def test_a_line_that_breaks_after_the_bytes_left_is_ambiguous_and_not_repeated(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    seen: list[bytes] = []

    def hang_up(visit: Visit, event: Any) -> None:
        seen.append(event.payload)
        visit.hang_up()

    rogue.on_delivery = hang_up
    error = await error_of(driver)
    assert isinstance(error, CommunicationError) and error.is_ambiguous
    assert len(seen) == 1


async def test_a_line_that_breaks_before_the_bytes_left_is_replaced_without_a_word(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    # Given a send that waits for credit
    rogue.credit = 0
    sender = driver.sender("orders")
    sending = asyncio.create_task(sender.send([parcel(b"x")], timeout_s=SOON_S))
    while not any(visit.replies for visit in rogue.visits):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not sending.done()

    # When the connection breaks and the next one gives credit
    rogue.credit = 10
    rogue.visits[0].hang_up()

    # Then it is sent there, once
    await sending
    assert len(rogue.taken) == 1 and len(rogue.visits) == 2


async def test_a_line_that_always_breaks_is_told_after_the_second_time(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    rogue.credit = 0

    def accept_and_leave(visit: Visit, link: Any) -> None:
        visit.accept(link)
        visit.flush()
        asyncio.get_running_loop().call_later(0.05, visit.hang_up)

    rogue.on_attach = accept_and_leave
    error = await error_of(driver)
    assert isinstance(error, CommunicationError) and not error.is_ambiguous
    assert len(rogue.visits) == 2


async def test_a_send_without_credit_times_out_and_was_not_sent(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    rogue.credit = 0
    error = await error_of(driver, timeout_s=0.2)
    assert isinstance(error, OperationTimeout) and not error.is_ambiguous


async def test_a_silent_line_is_replaced_after_a_timeout(rogue: Rogue, driver: AmqpDriver) -> None:
    # Given a service that falls silent, on this connection only
    sender = driver.sender("orders")
    await sender.send([parcel(b"1")], timeout_s=SOON_S)
    rogue.on_delivery = lambda visit, event: None
    with pytest.raises(OperationTimeout) as caught:
        await sender.send([parcel(b"2")], timeout_s=0.3)
    assert caught.value.is_ambiguous

    # When it is well again
    rogue.on_delivery = None
    await sender.send([parcel(b"3")], timeout_s=SOON_S)

    # Then that went over another connection, and the old one is given up
    await asyncio.sleep(0.1)
    assert [visit.is_over for visit in rogue.visits] == [True, False]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AuthenticationFailed),
        (404, AuthenticationFailed),
        (500, ServiceInternalError),
        (503, ServerBusy),
    ],
)
async def test_a_token_that_is_not_taken(
    rogue: Rogue, driver: AmqpDriver, status: int, kind: type[ServiceError]
) -> None:
    rogue.token_status = status
    error = await error_of(driver)
    assert type(error) is kind and "so it is" in str(error)
    shown = str(rogue.tokens[0].body)
    assert "SharedAccessSignature" in shown and shown not in str(error)


async def test_a_token_that_is_never_answered(rogue: Rogue, driver: AmqpDriver) -> None:
    rogue.token_status = None
    error = await error_of(driver, timeout_s=0.3)
    assert isinstance(error, OperationTimeout) and not error.is_ambiguous


async def test_many_who_wait_share_one_connection_and_one_token(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    senders = [driver.sender("orders") for _ in range(20)]
    await asyncio.gather(*(each.send([parcel(b"x")], timeout_s=SOON_S) for each in senders))
    assert len(rogue.visits) == 1 and len(rogue.tokens) == 1


async def test_an_error_belongs_to_one_call(rogue: Rogue, driver: AmqpDriver) -> None:
    rogue.token_status = 500
    sender = driver.sender("orders")
    errors = await asyncio.gather(
        *(sender.send([parcel(b"x")], timeout_s=SOON_S) for _ in range(3)), return_exceptions=True
    )
    assert len({id(error) for error in errors}) == 3
    assert isinstance(errors[0], ServiceInternalError) and isinstance(errors[1], ServiceError)
    errors[0].mark_final()
    assert errors[1].is_transient


async def test_more_links_than_a_connection_has_room_for_get_another(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    rogue.limits = type(rogue.limits)(channel_max=15)
    senders = [driver.sender(f"orders-{number}") for number in range(20)]
    await asyncio.gather(*(each.attach(timeout_s=SOON_S) for each in senders))
    assert len(rogue.visits) == 2


async def test_channels_are_used_again(rogue: Rogue, driver: AmqpDriver) -> None:
    rogue.limits = type(rogue.limits)(channel_max=7)
    for _ in range(30):
        sender = driver.sender("orders")
        await sender.attach(timeout_s=SOON_S)
        await sender.close()
    assert len(rogue.visits) == 1


async def test_a_caller_who_leaves_takes_nothing_from_the_others(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    rogue.token_status = None
    sender = driver.sender("orders")
    impatient = asyncio.create_task(sender.send([parcel(b"1")], timeout_s=0.2))
    leaving = asyncio.create_task(sender.send([parcel(b"2")], timeout_s=SOON_S))
    patient = asyncio.create_task(sender.send([parcel(b"3")], timeout_s=SOON_S))
    while not rogue.tokens:
        await asyncio.sleep(0.01)
    leaving.cancel()
    with pytest.raises(OperationTimeout):
        await impatient
    visit = rogue.visits[0]
    visit.reply("$cbs", rogue.tokens[0], {"status-code": 202})
    visit.flush()
    await patient
    assert len(rogue.taken) == 1
    with pytest.raises(asyncio.CancelledError):
        await leaving
