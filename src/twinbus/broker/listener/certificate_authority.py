"""A certificate authority for one broker, and the certificates it signs (EC P-256).

Rule 1: this module is imported when something has to be created or read. Its library takes longer
        to import than a broker's queues take to recover.
Rule 2: an authority signs only for the names it was created for, and for the local ones: with a
        stolen key it is not possible to impersonate other servers to clients that trust it.
Rule 3: a bundle has its names and times in a line of plain JSON above the PEM blocks, so that a
        start needs no ASN.1 reader to check them. OpenSSL skips such lines.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Long enough that clients need not trust a new authority for years; browsers and TLS libraries
# refuse server certificates of more than 398 days, so those are shorter and renewed.
AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 365
# Clocks of other machines, and of containers, may be behind.
BACKDATED: Final = datetime.timedelta(days=1)

HEADLINE: Final = "twinbus "


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    names: tuple[str, ...]

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def bundle(self) -> bytes:
        """The headline, the key and the certificate in one file, complete or absent."""
        headline = json.dumps(
            {
                "names": self.names,
                "begins_s": int(self.certificate.not_valid_before_utc.timestamp()),
                "expires_s": int(self.certificate.not_valid_after_utc.timestamp()),
            }
        )
        key_pem = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return f"{HEADLINE}{headline}\n".encode() + key_pem + self.certificate_pem


def make_authority(label: str, now_s: float, names: tuple[str, ...] = ()) -> IssuedCertificate:
    """A new authority. ``label`` identifies it in a list of certificates; ``names`` are the names
    it may sign for, beside the local ones (rule 2)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"twinbus local authority {label}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _draft(name, name, key, AUTHORITY_DAYS, now_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(_permitted(names), None), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return IssuedCertificate(certificate, key, ())


def missing_names(authority: IssuedCertificate, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names that an authority may not sign for; those of old versions have no such limit."""
    try:
        found = authority.certificate.extensions.get_extension_for_class(x509.NameConstraints)
    except x509.ExtensionNotFound:
        return ()
    permitted = found.value.permitted_subtrees or []
    return tuple(name for name in names if not any(_covers(each, name) for each in permitted))


def _permitted(names: tuple[str, ...]) -> list[x509.GeneralName]:
    """A name permits itself and its subdomains, an address its network."""
    found: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_network("127.0.0.0/8")),
        x509.IPAddress(ipaddress.ip_network("::1/128")),
    ]
    for name in names:
        if not any(_covers(each, name) for each in found):
            address = _alternative(name)
            if isinstance(address, x509.IPAddress):
                found.append(x509.IPAddress(ipaddress.ip_network(name)))
            else:
                found.append(x509.DNSName(name.removeprefix("*.")))
    return found


def _covers(permitted: x509.GeneralName, name: str) -> bool:
    own = _alternative(name)
    if isinstance(permitted, x509.IPAddress) and isinstance(own, x509.IPAddress):
        network, address = permitted.value, own.value
        return (
            isinstance(network, ipaddress.IPv4Network | ipaddress.IPv6Network)
            and isinstance(address, ipaddress.IPv4Address | ipaddress.IPv6Address)
            and address in network
        )
    if isinstance(permitted, x509.DNSName) and isinstance(own, x509.DNSName):
        plain, below = name.lower().removeprefix("*."), permitted.value.lower()
        return plain == below or plain.endswith(f".{below}")
    return False


def issue(authority: IssuedCertificate, names: tuple[str, ...], now_s: float) -> IssuedCertificate:
    """A certificate for a server that is known under ``names`` (host names and addresses)."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = authority.certificate
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = (
        _draft(_name("twinbus"), signer.subject, key, CERTIFICATE_DAYS, now_s)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([*map(_alternative, names)]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return IssuedCertificate(certificate, key, names)


def read_bundle(content: bytes) -> IssuedCertificate:
    """Read what ``bundle`` wrote; raises ValueError when it is damaged."""
    key = serialization.load_pem_private_key(content, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("The key is not an elliptic curve key")
    certificate = x509.load_pem_x509_certificate(content)
    if certificate.public_key() != key.public_key():
        raise ValueError("The key does not belong to the certificate")
    return IssuedCertificate(certificate, key, ())


def expiry_of(content: bytes) -> float:
    """When the first certificate of a PEM file expires; raises ValueError when there is none."""
    return x509.load_pem_x509_certificate(content).not_valid_after_utc.timestamp()


def _draft(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, now_s: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    usages: dict[str, Any] = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        **usages,
    )
