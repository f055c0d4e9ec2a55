"""The certificate of a broker: what is made, what is kept, and when it is made anew."""

from __future__ import annotations

import socket
import ssl
import stat
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from twinbus.broker.listener import certificates as keeper_module
from twinbus.broker.listener.certificate_authority import (
    issue,
    make_authority,
    read_bundle,
)
from twinbus.broker.listener.certificates import DAY_S, CertificateStore, names_for
from twinbus.broker.listener.listeners import shown_host
from twinbus.broker.options import BrokerOptions
from twinbus.errors import ConfigurationError


def certificate_in(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names_in(path: Path) -> set[str]:
    found = certificate_in(path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return {str(name.value) for name in found.value}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def shifted(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Let days pass for the keeper."""
    real = time.time
    monkeypatch.setattr(keeper_module.time, "time", lambda: real() + days * DAY_S)


def test_a_certificate_is_made_on_first_need_and_kept(tmp_path: Path) -> None:
    """M10: clients that trust ca.pem go on doing so after a restart."""
    first = CertificateStore(tmp_path).ca_path
    assert first == tmp_path / "tls" / "ca.pem"
    before = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}

    CertificateStore(tmp_path).prepare()

    assert before == {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    assert set(before) == {"ca.pem", "authority.pem", "server.pem"}


def test_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    """M10: a broker that nobody asks for TLS writes no keys."""
    CertificateStore(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_keys_are_private_and_the_authority_is_not(tmp_path: Path) -> None:
    """M6: and the public file has no key in it."""
    ca_path = CertificateStore(tmp_path).ca_path
    assert ca_path is not None
    assert mode_of(ca_path) == 0o644
    assert b"PRIVATE" not in ca_path.read_bytes()
    for name in ("authority.pem", "server.pem"):
        assert mode_of(tmp_path / "tls" / name) == 0o600


def test_the_certificate_has_the_names_that_clients_use(tmp_path: Path) -> None:
    """M10: the local ones, the host's, and those that were asked for."""
    CertificateStore(
        tmp_path, names=names_for("bus.example", ("192.0.2.7", "Extra.Example"))
    ).prepare()
    assert names_in(tmp_path / "tls" / "server.pem") == {
        "localhost",
        "*.localhost",
        "127.0.0.1",
        "::1",
        "bus.example",
        "192.0.2.7",
        "extra.example",
    }


def test_a_certificate_whose_names_no_longer_fit_is_issued_anew(tmp_path: Path) -> None:
    """M10: by the same authority, if that may sign for them: clients need not notice."""
    CertificateStore(tmp_path, names=("bus.example", "192.0.2.7")).prepare()
    authority = (tmp_path / "tls" / "ca.pem").read_bytes()

    CertificateStore(tmp_path, names=("eu.bus.example", "bus.localhost", "127.9.0.1")).prepare()

    assert "eu.bus.example" in names_in(tmp_path / "tls" / "server.pem")
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == authority


def test_a_name_that_the_authority_may_not_sign_for_needs_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """M13: otherwise its key could sign for any server there is."""
    CertificateStore(tmp_path).prepare()
    authority = (tmp_path / "tls" / "ca.pem").read_bytes()

    CertificateStore(tmp_path, names=("bus.example",)).prepare()

    assert "bus.example" in names_in(tmp_path / "tls" / "server.pem")
    assert (tmp_path / "tls" / "ca.pem").read_bytes() != authority
    assert "sign for bus.example" in caplog.text
    assert "the new ca.pem" in caplog.text


def test_the_machines_own_name_makes_no_new_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M10: a container has another one with every start, and clients trust what they trust."""
    monkeypatch.setattr(socket, "gethostname", lambda: "one")
    CertificateStore(tmp_path, names=names_for("0.0.0.0", ("bus.example",))).prepare()
    authority = (tmp_path / "tls" / "ca.pem").read_bytes()
    monkeypatch.setattr(socket, "gethostname", lambda: "two")

    for _ in range(2):
        CertificateStore(tmp_path, names=names_for("0.0.0.0", ("bus.example",))).prepare()
        assert (tmp_path / "tls" / "ca.pem").read_bytes() == authority
        assert names_in(tmp_path / "tls" / "server.pem") & {"one", "two"} == set()


def test_an_authority_from_before_goes_on_being_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M10: one without name constraints; clients trust it already."""
    real = x509.CertificateBuilder.add_extension
    with monkeypatch.context() as patched:
        patched.setattr(
            x509.CertificateBuilder,
            "add_extension",
            lambda self, extension, critical: (
                self
                if isinstance(extension, x509.NameConstraints)
                else real(self, extension, critical)
            ),
        )
        CertificateStore(tmp_path).prepare()
    authority = (tmp_path / "tls" / "ca.pem").read_bytes()

    CertificateStore(tmp_path, names=("bus.example",)).prepare()

    assert (tmp_path / "tls" / "ca.pem").read_bytes() == authority


def test_a_certificate_is_renewed_a_month_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M10: also in a broker that runs all the time."""
    keeper = CertificateStore(tmp_path)
    first = keeper.prepare()
    authority = (tmp_path / "tls" / "ca.pem").read_bytes()

    shifted(monkeypatch, days=330)
    assert keeper.ready() is first.context
    monkeypatch.undo()
    shifted(monkeypatch, days=336)
    assert keeper.ready() is None
    second = keeper.prepare()

    assert second.expires_s > first.expires_s + 300 * DAY_S
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == authority


def test_a_certificate_that_was_made_by_a_clock_ahead_of_time_is_issued_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M10: no client would take it yet."""
    shifted(monkeypatch, days=100)
    ahead = CertificateStore(tmp_path).prepare()
    monkeypatch.undo()
    assert CertificateStore(tmp_path).prepare().expires_s < ahead.expires_s - 90 * DAY_S


def test_when_renewing_fails_the_old_certificate_is_shown_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """M10: a full disk is no reason to turn clients away; it is tried again after an hour."""

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    keeper = CertificateStore(tmp_path)
    first = keeper.prepare()
    shifted(monkeypatch, days=340)
    monkeypatch.setattr(keeper_module, "write_private", full)
    assert keeper.prepare().context is first.context
    assert keeper.ready() is first.context
    assert caplog.text.count("could not be renewed") == 1
    with pytest.raises(ConfigurationError, match="No space left"):
        CertificateStore(tmp_path / "new").prepare()


def test_an_authority_that_would_end_before_its_certificates_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """M10: after almost nine years, and it is said."""
    keeper = CertificateStore(tmp_path)
    keeper.prepare()
    before = (tmp_path / "tls" / "ca.pem").read_bytes()
    shifted(monkeypatch, days=3_300)
    keeper.prepare()
    assert (tmp_path / "tls" / "ca.pem").read_bytes() != before
    assert "the new ca.pem" in caplog.text


@pytest.mark.parametrize("name", ["ca.pem", "authority.pem", "server.pem"])
@pytest.mark.parametrize("content", [None, b"", b"twinbus {}\nnoise", b"\xff" * 99])
def test_what_is_lost_or_damaged_is_made_anew(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    """M10: the public file from the private one, a certificate by the authority."""
    CertificateStore(tmp_path).prepare()
    path = tmp_path / "tls" / name
    mode = mode_of(path)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    # Only a certificate that does not fit makes a keeper look at the authority.
    CertificateStore(tmp_path, names=("other",)).prepare()

    authority = read_bundle((tmp_path / "tls" / "authority.pem").read_bytes())
    server = certificate_in(tmp_path / "tls" / "server.pem")
    server.verify_directly_issued_by(authority.certificate)
    assert certificate_in(tmp_path / "tls" / "ca.pem") == authority.certificate


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """M6: it may have been copied."""
    CertificateStore(tmp_path).prepare()
    (tmp_path / "tls" / "server.pem").chmod(0o644)
    with pytest.raises(ConfigurationError, match="mode 644"):
        CertificateStore(tmp_path).prepare()


def test_without_a_data_directory_it_lives_as_long_as_the_broker() -> None:
    """M10: in a directory that nobody else can look into."""
    keeper = CertificateStore(None)
    path = keeper.ca_path
    assert path is not None and path.exists()
    assert mode_of(path.parent) == 0o700
    keeper.close()
    assert not path.parent.exists()


def given_files(
    directory: Path, *, password: bytes | None = None, now_s: float | None = None
) -> tuple[Path, Path]:
    """A certificate for bus.example with its key, and given-ca.pem, which signed it."""
    at_s = time.time() if now_s is None else now_s
    signer = make_authority("given", at_s, ("bus.example",))
    made = issue(signer, ("bus.example",), at_s)
    (directory / "given-ca.pem").write_bytes(signer.certificate_pem)
    certificate, key = directory / "given.pem", directory / "given.key"
    certificate.write_bytes(made.certificate_pem)
    scheme = serialization.NoEncryption() if password is None else _scheme(password)
    key.write_bytes(
        made.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, scheme
        )
    )
    return certificate, key


def _scheme(password: bytes) -> serialization.KeySerializationEncryption:
    return serialization.BestAvailableEncryption(password)


def test_a_certificate_of_the_users_own_is_shown_and_nothing_is_made(tmp_path: Path) -> None:
    """M10: there is no authority of ours to trust then."""
    given = given_files(tmp_path)
    keeper = CertificateStore(tmp_path / "data", given=given)
    assert keeper.prepare().expires_s == pytest.approx(time.time() + 365 * DAY_S, abs=60)
    assert keeper.ca_path is None
    assert not (tmp_path / "data").exists()


def test_a_certificate_that_cannot_be_used_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """M10: missing, of another key, with a password; nobody is asked for one."""
    certificate, key = given_files(tmp_path)
    (tmp_path / "locked").mkdir()
    (tmp_path / "other").mkdir()
    _certificate, locked = given_files(tmp_path / "locked", password=b"secret")
    _certificate, other = given_files(tmp_path / "other")
    for pair in (
        (certificate, locked),
        (certificate, other),
        (certificate, tmp_path / "missing"),
        (tmp_path / "missing", key),
        (key, certificate),
    ):
        with pytest.raises(ConfigurationError, match="cannot be used") as refused:
            CertificateStore(None, given=pair).prepare()
        assert "PEM" in refused.value.hint
        assert "secret" not in str(refused.value)


def test_the_context_takes_nothing_older_than_tls_1_2(tmp_path: Path) -> None:
    """M10: and no trick that lets old bytes be sent again."""
    context = CertificateStore(tmp_path).prepare().context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.num_tickets == 0
    for option in (ssl.OP_NO_COMPRESSION, ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_TICKET):
        assert option in context.options
    for cipher in context.get_ciphers():
        assert cipher["protocol"] == "TLSv1.3" or cipher["name"].startswith("ECDHE-")


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("127.0.0.1", ()),
        ("::1", ()),
        ("localhost", ()),
        ("127.0.0.2", ("127.0.0.2",)),
        ("192.0.2.7", ("192.0.2.7",)),
        ("bus.example", ("bus.example",)),
    ],
)
def test_the_address_to_listen_on_tells_the_names(host: str, names: tuple[str, ...]) -> None:
    """M10: the local ones are always there."""
    assert names_for(host) == names


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_on_every_address_the_machines_own_name_counts(host: str) -> None:
    """M10: it is all that is known, and on the machine itself it is localhost."""
    assert names_for(host) == (socket.gethostname(),)
    assert shown_host(host) == "localhost"


def test_an_address_stands_in_a_connection_string_as_a_url_wants_it() -> None:
    """M10: IPv6 in brackets."""
    shown = [shown_host(host) for host in ("::1", "fd00::7", "192.0.2.7", "bus.example")]
    assert shown == ["localhost", "[fd00::7]", "192.0.2.7", "bus.example"]


@pytest.mark.parametrize(
    "options",
    [
        {"tls_certificate": Path("a.pem")},
        {"tls_key": Path("a.key")},
        {"tls_names": ("bücher.example",)},
        {"tls_names": ("a b",)},
        {"tls_names": ("",)},
        {"tls_names": ("a\n",)},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, object]) -> None:
    """M10: when they are built."""
    with pytest.raises(ConfigurationError):
        BrokerOptions(**options)  # type: ignore[arg-type]
