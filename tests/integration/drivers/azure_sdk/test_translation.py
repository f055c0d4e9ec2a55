"""Every failure of the SDK as the port names it: by table, and over a real connection."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import ErrorCondition
from azure.servicebus._transport._pyamqp_transport import _ERROR_CODE_TO_ERROR_MAPPING
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync

from tests.integration.drivers.azure_sdk.trouble import fault
from twinbus.broker.engine.descriptions import EntityStatus
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.azure_sdk import ServiceBusDriver, ServiceBusOptions
from twinbus.drivers.azure_sdk.errors import CONDITIONS, translate_error
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    LinkDetached,
    MessageLockLost,
    MessageRefused,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
    TwinbusError,
)
from twinbus.testing.namespaces import NamespaceFixture

TIMEOUT_S = 20.0
SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="


def parcel(text: str = "x") -> OutgoingMessage:
    return OutgoingMessage(native=ServiceBusMessage(text))


def told(error: BaseException, **facts: Any) -> ServiceError:
    return translate_error(error, doing="sending to", path="orders", **facts)


# -- the table ------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [*ErrorCondition, *_ERROR_CODE_TO_ERROR_MAPPING])
def test_every_condition_that_the_sdk_knows_has_a_name_here(condition: Any) -> None:
    """P7: whatever class the SDK makes of it."""
    raised = PyamqpTransportAsync._handle_amqp_exception_with_condition(
        _Quiet(), condition, description="the service's words"
    )
    failure = told(raised)
    text = (getattr(condition, "value", condition)).decode()
    assert failure.condition == text and text in str(failure)
    assert "the service's words" not in str(failure)
    assert type(failure) is CONDITIONS.get(text, type(failure))


class _Quiet:
    def info(self, *_words: object) -> None: ...

    exception = info


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (sdk.ServiceBusError("x", condition=b"amqp:internal-error"), ServiceInternalError),
        (sdk.ServiceBusError("x", condition=b"com.example:novel"), ServiceInternalError),
        (sdk.ServiceBusError("Handler failed: nonsense."), CommunicationError),
        (sdk.ServiceBusConnectionError(condition=b"amqp:socket-error"), CommunicationError),
        (sdk.ServiceBusConnectionError(condition=b"amqp:unknown-error"), LinkDetached),
        (sdk.ServiceBusConnectionError(condition=b"amqp:link:detach-forced"), LinkDetached),
        (sdk.ServiceBusAuthenticationError(condition=b"amqp:client-error"), AuthenticationFailed),
        (sdk.ServiceBusAuthorizationError(), AccessRefused),
        (sdk.ServiceBusServerBusyError(), ServerBusy),
        (sdk.OperationTimeoutError(), OperationTimeout),
        (sdk.MessageSizeExceededError(), MessageTooLarge),
        (sdk.MessageAlreadySettled(action="complete"), MessageLockLost),
        (TimeoutError(), OperationTimeout),
        (ConnectionResetError(), CommunicationError),
        (ValueError("an argument"), MessageRefused),
        (TypeError("an argument"), MessageRefused),
    ],
)
def test_what_has_no_condition_goes_by_its_class(
    error: Exception, expected: type[ServiceError]
) -> None:
    assert type(told(error)) is expected


def test_what_the_service_said_at_the_detach_is_found_again() -> None:
    """P7: an entity that is gone is no outage, although the SDK only says "unknown"."""
    lost = sdk.ServiceBusConnectionError(condition=b"amqp:unknown-error")
    for condition, expected in (
        (b"amqp:not-found", EntityNotFound),
        (b"com.microsoft:entity-disabled", EntityDisabled),
        (b"amqp:unauthorized-access", AccessRefused),
        (b"com.microsoft:server-busy", LinkDetached),
        (b"amqp:link:detach-forced", LinkDetached),
    ):
        said = sdk.ServiceBusError("x", condition=condition)
        assert type(told(lost, link_error=said)) is expected


def test_whether_a_message_had_left_is_told() -> None:
    lost = sdk.ServiceBusConnectionError(condition=b"amqp:socket-error")
    assert told(lost, was_sent=True).is_ambiguous
    assert not told(lost, was_sent=False).is_ambiguous


# -- over a real connection -----------------------------------------------------------------


async def raised_by(
    driver: ServiceBusDriver, path: str, message: OutgoingMessage | None = None
) -> Any:
    """What a send raises, soon."""
    began_s = time.monotonic()
    with pytest.raises(TwinbusError) as raised:
        await driver.sender(path).send([message or parcel()], timeout_s=TIMEOUT_S)
    assert time.monotonic() - began_s < TIMEOUT_S / 2
    assert raised.value.__cause__ is not None
    return raised.value


async def test_refusals_say_what_is_wrong(
    driver: ServiceBusDriver, servicebus: NamespaceFixture
) -> None:
    """P7: none of these is an outage."""
    servicebus.queue("disabled", status=EntityStatus.DISABLED)
    servicebus.queue("orders")
    assert type(await raised_by(driver, "absent")) is EntityNotFound
    assert type(await raised_by(driver, "disabled")) is EntityDisabled
    large = await raised_by(driver, "orders", parcel("x" * 300_000))
    assert type(large) is MessageTooLarge
    many = [parcel("x" * 200_000), parcel("x" * 200_000)]
    with pytest.raises(MessageTooLarge):
        await driver.sender("orders").send(many, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("amqp:resource-limit-exceeded", QuotaExceeded),
        ("amqp:internal-error", ServiceInternalError),
        ("com.microsoft:operation-cancelled", ServiceInternalError),
        ("com.microsoft:timeout", OperationTimeout),
        ("com.microsoft:argument-error", MessageRefused),
    ],
)
async def test_a_refused_message_leaves_the_link_in_use(
    driver: ServiceBusDriver,
    servicebus: NamespaceFixture,
    queue: str,
    condition: str,
    expected: type[ServiceError],
) -> None:
    sender = driver.sender(queue)
    await sender.send([parcel()], timeout_s=TIMEOUT_S)
    with fault(servicebus, "cannot-send", condition=condition), pytest.raises(expected) as raised:
        await sender.send([parcel()], timeout_s=TIMEOUT_S)
    assert raised.value.condition == condition
    await sender.send([parcel()], timeout_s=TIMEOUT_S)


async def test_a_service_that_refuses_connections(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """P7: nobody to talk to, and nothing has left."""
    with servicebus.outage("refused"):
        failure = await raised_by(driver, queue)
    assert type(failure) is CommunicationError
    assert failure.is_transient and not failure.is_ambiguous


async def test_a_name_that_nobody_knows() -> None:
    """P7: unresolvable is an outage too."""
    unknown = parse_connection_string(
        f"Endpoint=sb://nowhere.invalid;SharedAccessKeyName=n;SharedAccessKey={SECRET};"
        "UseDevelopmentEmulator=true"
    )
    driver = ServiceBusDriver.from_connection_string(unknown)
    failure = await raised_by(driver, "orders")
    assert type(failure) is CommunicationError and not failure.is_ambiguous
    await driver.close()


async def test_a_line_that_breaks_behind_a_message_is_told_so(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """P7: it may have arrived, so the caller must know, and soon."""
    sender = driver.sender(queue)
    await sender.send([parcel()], timeout_s=TIMEOUT_S)
    with fault(servicebus, "cannot-send", how="timeout"):
        pending = asyncio.create_task(sender.send([parcel()], timeout_s=TIMEOUT_S))
        await asyncio.sleep(0.1)
        with servicebus.outage("reset"):
            began_s = time.monotonic()
            with pytest.raises(CommunicationError) as raised:
                await pending
    assert raised.value.is_ambiguous
    assert time.monotonic() - began_s < TIMEOUT_S / 2


async def test_a_wrong_key_is_told_and_not_shown(servicebus: NamespaceFixture, queue: str) -> None:
    """P7: every failure of the token's door is AuthenticationFailed."""
    right = parse_connection_string(servicebus.connection_string)
    wrong = parse_connection_string(
        servicebus.connection_string.replace(right.shared_access_key or "", SECRET)
    )
    driver = ServiceBusDriver.from_connection_string(wrong)
    failure = await raised_by(driver, queue)
    assert type(failure) is AuthenticationFailed
    assert SECRET not in f"{failure}{failure!r}{vars(failure)}{vars(driver)}"
    await driver.close()


class Identity:
    """A credential as azure-identity has them."""

    def __init__(self, answer: AccessToken | Exception) -> None:
        self.answer = answer

    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def with_identity(bus: NamespaceFixture, identity: Identity) -> ServiceBusDriver:
    return ServiceBusDriver.for_namespace(
        f"localhost:{bus.port}", identity, ServiceBusOptions(client_options={"use_tls": False})
    )


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError(f"the token service is broken, by the way: {SECRET}"),
        AccessToken(SECRET, int(time.time()) + 3600),
    ],
)
async def test_an_identity_without_a_good_token_is_not_authenticated(
    servicebus: NamespaceFixture, queue: str, answer: AccessToken | Exception
) -> None:
    """P7: whether the identity's own service fails, or ours does not like its token."""
    driver = with_identity(servicebus, Identity(answer))
    failure = await raised_by(driver, queue)
    assert type(failure) is AuthenticationFailed and failure.path == queue
    assert SECRET not in f"{failure}{failure!r}{vars(failure)}"
    await driver.close()


@pytest.mark.parametrize(
    "words", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, b"", b"AMQP\x03\x01\x00\x00" + b"\xff" * 64]
)
async def test_a_peer_that_talks_nonsense_is_no_peer(words: bytes) -> None:
    """P7: an outage, and within the time that was given."""

    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        driver = ServiceBusDriver.from_connection_string(_at(port))
        with pytest.raises((CommunicationError, OperationTimeout)) as raised:
            await driver.sender("orders").send([parcel()], timeout_s=1.0)
        await driver.close()
    assert raised.value.is_transient


async def test_a_peer_that_says_nothing_costs_the_time_that_was_given() -> None:
    """F6: and no more, also when the driver is closed."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        driver = ServiceBusDriver.from_connection_string(_at(silent.getsockname()[1]))
        began_s = time.monotonic()
        with pytest.raises(OperationTimeout):
            await driver.sender("orders").send([parcel()], timeout_s=0.3)
        await driver.close()
        assert time.monotonic() - began_s < 5


def _at(port: int) -> Any:
    return parse_connection_string(
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey={SECRET};"
        "UseDevelopmentEmulator=true"
    )
