"""Case 79: everything that can be wrong with TLS, on either side of it.

The broker refuses what is too old, what is no TLS and what never ends. A client that verifies is
the one that must refuse a certificate: the stock one does, and here is what it sees.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.adversarial.guards import Guard
from tests.support.broker_process import BrokerProcess
from twinbus.amqp.frames import PROTOCOL_SASL
from twinbus.broker.listener.certificate_authority import make_authority

TIMEOUT_S = 10.0


@pytest.fixture
def ca_path(broker: BrokerProcess) -> str:
    assert broker.ca_path is not None
    return broker.ca_path


def verifying(ca_path: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_path)


@contextmanager
def secured(
    broker: BrokerProcess, context: ssl.SSLContext, name: str | None = "localhost"
) -> Iterator[ssl.SSLSocket]:
    """A connection inside TLS."""
    with (
        socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=name) as tls,
    ):
        yield tls


def greet(tls: ssl.SSLSocket) -> None:
    """The broker speaks AMQP in here."""
    tls.sendall(PROTOCOL_SASL)
    assert tls.recv(8) == PROTOCOL_SASL


def tls_hello() -> bytes:
    """The first flight of a TLS client."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    hello = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()


def until_closed(connection: socket.socket) -> bytes:
    """What the broker says until it closes."""
    said = b""
    with suppress(ConnectionError):
        while more := connection.recv(65_536):
            said += more
    return said


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(ssl.TLSVersion.TLSv1, id="case-79-tls-1.0"),
        pytest.param(ssl.TLSVersion.TLSv1_1, id="case-79-tls-1.1"),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(broker: BrokerProcess, version: ssl.TLSVersion) -> None:
    """M10: TLS 1.2 or later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # Without this OpenSSL itself refuses to speak so, and nothing is tested.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with pytest.raises((ssl.SSLError, ConnectionError)), secured(broker, context):
        pass


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_case_79_newer_versions_are_spoken(
    broker: BrokerProcess, ca_path: str, version: ssl.TLSVersion
) -> None:
    """M10: the counterpart, so that the tests above can be believed."""
    context = verifying(ca_path)
    context.minimum_version = context.maximum_version = version
    with secured(broker, context) as tls:
        greet(tls)


def test_case_79_a_name_that_is_not_ours_fails_for_a_client_that_verifies(
    broker: BrokerProcess, ca_path: str
) -> None:
    """M10: the certificate has the names it has."""
    with (
        pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"),
        secured(broker, verifying(ca_path), "bus.example"),
    ):
        pass


@pytest.mark.parametrize("trusted", ["the system's", "another one"])
def test_case_79_an_unknown_authority_fails_for_a_client_that_verifies(
    broker: BrokerProcess, tmp_path: Path, trusted: str
) -> None:
    """M10: whatever else it trusts."""
    context = ssl.create_default_context()
    if trusted == "another one":
        stranger = tmp_path / "stranger.pem"
        stranger.write_bytes(make_authority("stranger", time.time()).certificate_pem)
        context = verifying(str(stranger))
    with pytest.raises(ssl.SSLCertVerificationError), secured(broker, context):
        pass


def test_case_79_no_server_name_is_fine(broker: BrokerProcess, ca_path: str) -> None:
    """M10: a client that goes to an address sends none."""
    context = verifying(ca_path)
    context.check_hostname = False
    with secured(broker, context, None) as tls:
        greet(tls)


def test_case_79_the_address_is_a_name_too(broker: BrokerProcess, ca_path: str) -> None:
    """M10: 127.0.0.1 stands in the certificate."""
    with secured(broker, verifying(ca_path), "127.0.0.1") as tls:
        greet(tls)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(tls_hello() + b"\x00" * 500, id="case-79-zeros-after-the-hello"),
        pytest.param(tls_hello() + b"GET / HTTP/1.1\r\n\r\n" * 9, id="case-79-http-after-hello"),
        pytest.param(b"\x16" * 2_000, id="case-79-nothing-but-the-first-byte"),
        pytest.param(b"\x16\x03\x01\xff\xff" + b"\x01" * 99_999, id="case-79-a-huge-record"),
        pytest.param(b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", id="case-79-a-hello-of-16-mb"),
        pytest.param(b"\x16\x03\x01\x00\x00" * 200, id="case-79-empty-records"),
    ],
)
def test_garbage_in_the_handshake_ends_it(broker: BrokerProcess, guard: Guard, said: bytes) -> None:
    """M6: at once where it is seen at once, and with an alert at most."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S) as plain:
        with suppress(ConnectionError):
            plain.sendall(said)
            plain.shutdown(socket.SHUT_WR)
        guard.heard += until_closed(plain)
    assert PROTOCOL_SASL not in guard.heard
    assert b"HTTP" not in guard.heard


def test_case_79_garbage_after_the_handshake_ends_the_connection(
    broker: BrokerProcess, ca_path: str
) -> None:
    """M6: a broken record is not passed on to anybody."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S) as plain:
        tls = verifying(ca_path).wrap_socket(plain, server_hostname="localhost")
        greet(tls)
        with socket.socket(fileno=tls.detach()) as bare:
            bare.settimeout(TIMEOUT_S)
            bare.sendall(b"\x17\x03\x03\x00\x40" + b"\xaa" * 64)
            until_closed(bare)


def test_case_79_a_hundred_handshakes_that_never_end_hinder_nobody(
    broker: BrokerProcess, guard: Guard
) -> None:
    """M6: the bystander goes on meanwhile; hung up on, nothing is left of them."""
    hello = tls_hello()
    connections = [
        socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S) for _ in range(100)
    ]
    guard.log_lines_max = 11  # Ten in a second, and how many more there were.
    for number, connection in enumerate(connections):
        connection.sendall(hello[: 1 + number * len(hello) // 100])
    guard.bystander.await_rounds(20)
    for connection in connections:
        connection.close()


def run_openssl(*arguments: str, said: bytes) -> str:
    done = subprocess.run(
        ["openssl", *arguments], input=said, capture_output=True, timeout=30, check=False
    )
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def client_arguments(broker: BrokerProcess, ca_path: str, *more: str) -> tuple[str, ...]:
    where = f"localhost:{broker.port}"
    return ("s_client", "-connect", where, "-CAfile", ca_path, *more)


@pytest.fixture
def openssl() -> None:
    try:
        subprocess.run(["openssl", "version"], capture_output=True, timeout=30, check=True)
    except OSError:
        pytest.skip("there is no openssl command on this machine")


@pytest.mark.usefixtures("openssl")
def test_case_79_a_client_cannot_renegotiate(broker: BrokerProcess, ca_path: str) -> None:
    """M6: "R" on a line makes the client ask for it; Python cannot."""
    told = run_openssl(*client_arguments(broker, ca_path, "-tls1_2"), said=b"R\n")
    assert "Verify return code: 0 (ok)" in told
    assert "RENEGOTIATING" in told
    assert "no renegotiation" in told


@pytest.mark.usefixtures("openssl")
def test_case_79_there_is_no_early_data_and_no_ticket_to_send_it_with(
    broker: BrokerProcess, ca_path: str
) -> None:
    """M6: what came in early could be sent again by whoever recorded it."""
    told = run_openssl(*client_arguments(broker, ca_path, "-tls1_3"), said=b"")
    assert "Verify return code: 0 (ok)" in told
    assert "Max Early Data" not in told or "Max Early Data: 0" in told
    assert "TLS session ticket" not in told
