"""``twinbus serve`` and its options about TLS, as people run it."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.integration.sdk.test_serve import FREE_PORTS, assert_a_sentence, line_of, run, serving
from tests.support.broker_process import BrokerProcess
from tests.unit.broker.listener.test_certificates import given_files
from twinbus.broker.listener import certificate_authority
from twinbus.broker.listener.certificates import DAY_S

TIMEOUT_S = 10.0


def shown_by(port: int, context: ssl.SSLContext, name: str) -> dict[str, object]:
    """The certificate that a verifying client accepts."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=name) as tls,
    ):
        return tls.getpeercert() or {}


def test_a_certificate_of_ones_own_is_shown(tmp_path: Path) -> None:
    """M10: under its own name; the ready line names no authority of ours."""
    certificate, key = given_files(tmp_path)
    issuer = tmp_path / "given-ca.pem"
    arguments = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:
        assert broker.ca_path is None
        assert not (tmp_path / "data" / "tls").exists()
        shown = shown_by(broker.port, ssl.create_default_context(cafile=issuer), "bus.example")
        assert shown["subjectAltName"] == (("DNS", "bus.example"),)


def test_an_rsa_certificate_works_too(tmp_path: Path) -> None:
    """M10: what people have is not always an elliptic curve."""
    key = rsa.generate_private_key(65_537, 2_048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bus.example")])
    made = certificate_authority.issue(
        certificate_authority.make_authority("x", time.time()), ("bus.example",), 0
    )
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(made.certificate.not_valid_before_utc)
        .not_valid_after(
            certificate_authority.make_authority("x", time.time()).certificate.not_valid_after_utc
        )
        .add_extension(
            made.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value,
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    both = tmp_path / "both.pem"
    both.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    arguments = ("--tls-cert", str(both), "--tls-key", str(both))
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:
        context = ssl.create_default_context(cafile=str(both))
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context.minimum_version = context.maximum_version = version
            assert shown_by(broker.port, context, "bus.example")


def test_case_79_an_expired_certificate_fails_for_a_client_that_verifies(tmp_path: Path) -> None:
    """M10: the broker shows what it was given, and warns."""
    certificate, key = given_files(tmp_path, now_s=time.time() - 400 * DAY_S)
    arguments = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:
        context = ssl.create_default_context(cafile=str(tmp_path / "given-ca.pem"))
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            shown_by(broker.port, context, "bus.example")
        assert "has expired" in broker.log()


def test_more_names_can_be_asked_for(tmp_path: Path) -> None:
    """M10: a name in a container network, for example."""
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.ca_path is not None
        trusted = Path(broker.ca_path).read_bytes()
    # A name that the authority may not sign for needs a new one; then it stays the same.
    arguments = ("--tls-name", "bus.internal")
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:
        assert "the new ca.pem" in broker.log()
        trusted = Path(str(broker.ca_path)).read_bytes()
        context = ssl.create_default_context(cadata=trusted.decode())
        assert shown_by(broker.port, context, "bus.internal")
        assert shown_by(broker.port, context, "localhost")
    with BrokerProcess(
        tmp_path / "data", arguments=(*arguments, "--tls-name", "eu.bus.internal")
    ) as broker:
        assert shown_by(broker.port, context, "eu.bus.internal")


def test_in_memory_the_authority_is_gone_with_the_broker() -> None:
    """M10: nothing is left on disk after a clean end."""
    with BrokerProcess(None) as broker:
        assert broker.ca_path is not None
        ca_path = Path(broker.ca_path)
        assert shown_by(broker.port, ssl.create_default_context(cafile=ca_path), "localhost")
        assert broker.stop() == 0
    assert not ca_path.parent.exists()


def test_people_are_told_where_the_authority_is(tmp_path: Path) -> None:
    """M10: in the text too."""
    with serving("--data", str(tmp_path / "data"), *FREE_PORTS) as process:
        lines = [line_of(process) for _ in range(3)]
        assert str(tmp_path / "data" / "tls" / "ca.pem") in lines[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--namespace", "demo:0", "--tls-port", "70000"],
        ["--namespace", "demo:0", "--tls-port", "elsewhere:0"],
        ["--namespace", "demo:0", "--namespace", "other:0", "--tls-port", "0"],
        ["--namespace", "demo:0", "--tls-cert", "no-such.pem"],
        ["--namespace", "demo:0", "--tls-cert", "no-such.pem", "--tls-key", "no-such.key"],
        ["--namespace", "demo:0", "--tls-name", "not a name"],
    ],
    ids=" ".join,
)
def test_bad_arguments_get_a_sentence(tmp_path: Path, arguments: list[str]) -> None:
    """M10: never a traceback."""
    ended = run("--data", str(tmp_path / "data"), "--admin-port", "0", *arguments)
    assert_a_sentence(ended, 2)


def test_a_tls_port_in_use_gets_a_sentence_and_leaves_nothing_open(tmp_path: Path) -> None:
    """M10: and the first broker goes on."""
    with BrokerProcess(tmp_path / "data", arguments=("--tls-port", "0")) as broker:
        ended = run(
            "--data", str(tmp_path / "other"), *FREE_PORTS, "--tls-port", str(broker.tls_port)
        )
        assert_a_sentence(ended, 1)
        assert f"Port {broker.tls_port}" in ended.stderr
        assert broker.health()["status"] == "ok"
