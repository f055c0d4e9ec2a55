"""Certificates, looked at by other programs."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509

from twinbus.broker.listener.certificate_authority import (
    issue,
    make_authority,
    missing_names,
)
from twinbus.broker.listener.certificates import CertificateStore


def test_a_kept_certificate_is_shown_without_the_library_that_makes_them(tmp_path: Path) -> None:
    """M10: a start does not get slower by it."""
    CertificateStore(tmp_path).prepare()
    code = (
        "import sys; from pathlib import Path; from twinbus.broker.listener.certificates import "
        "CertificateStore\n"
        "CertificateStore(Path(sys.argv[1])).prepare()\n"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=30).returncode == 0


def verified(authority: Path, certificate: bytes, tmp_path: Path) -> tuple[bool, str]:
    """What OpenSSL says to a certificate that an authority has signed."""
    shown = tmp_path / "shown.pem"
    shown.write_bytes(certificate)
    ended = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", str(authority), str(shown)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("names", "is_allowed"),
    [
        (("localhost", "*.localhost", "127.0.0.1", "::1"), True),
        (("127.200.3.4", "a.b.localhost"), True),
        (("bus.example", "*.bus.example", "eu.bus.example", "192.0.2.7"), True),
        (("localhost", "www.example"), False),
        (("notbus.example",), False),
        (("192.0.2.8", "localhost"), False),
        (("::2", "localhost"), False),
    ],
)
def test_case_178_a_stolen_authority_signs_for_its_own_names_alone(
    tmp_path: Path, names: tuple[str, ...], is_allowed: bool
) -> None:
    """M13: OpenSSL and cryptography's own validator agree on what its constraints allow."""
    authority = make_authority("mine", time.time(), ("bus.example", "192.0.2.7"))
    (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)
    made = issue(authority, names, time.time())

    is_good, said = verified(tmp_path / "ca.pem", made.certificate_pem, tmp_path)

    assert is_good is is_allowed, said
    assert (missing_names(authority, names) == ()) is is_allowed
    asked = names[0].removeprefix("*.") if names[0][0] != ":" else names[0]
    verifier = (
        x509.verification.PolicyBuilder()
        .store(x509.verification.Store([authority.certificate]))
        .build_server_verifier(subject_of(asked))
    )
    if is_allowed:
        verifier.verify(made.certificate, [])
    else:
        with pytest.raises(x509.verification.VerificationError):
            verifier.verify(made.certificate, [])


def subject_of(name: str) -> x509.IPAddress | x509.DNSName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
