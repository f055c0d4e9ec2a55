"""Shared access signatures: read and verify tokens, and keep what they grant to a connection.

The form of a token is in common/sas_token.py.

Rule 1: the four fields, once each, and nothing else. A token has one meaning or is refused.
Rule 2: an unknown rule name and a wrong signature get the same error after the same work,
        so that a client cannot find out which rule names exist.
Rule 3: a resource matches by whole segments: ``queue1`` never covers ``queue10``.
Rule 4: the scope of a rule and the resource of a token are two things, and both must cover a path.
        A rule of an entity covers that entity with its subscriptions, dead letters and
        ``$management``, whatever ``sr`` contains, and no entity whose path is only longer. A rule
        of the namespace covers everything, and its tokens what is at or below their ``sr``.
Rule 5: without a grant nothing is allowed.
Rule 6: grants add up. A link stays open as long as any grant covers it.
Rule 7: bounded: of too many tokens on one connection, the oldest are dropped.
Rule 8: a check costs as much as the path has segments, however many grants there are: a connection
        may have a thousand grants and a thousand links, and all links are checked at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet, check_rule_name
from twinbus.common.entity_path import owning_entity, parse_resource_segments
from twinbus.common.sas_token import TOKEN_PREFIX, keyed_digest, make_token
from twinbus.errors import AccessDenied, ConfigurationError, InvalidEntityPath

__all__ = [
    "LOOPBACK_NAMES",
    "AccessGrant",
    "Audience",
    "Grants",
    "RuleLookup",
    "SasToken",
    "is_backed",
    "make_token",
    "parse_resource",
    "parse_token",
    "verify",
]

# The longest valid token: 260 characters of path and a host name, every one percent-encoded.
TOKEN_LENGTH_MAX: Final = 2_048
# Beyond this Unix time (the end of year 9999) a date cannot be shown.
EXPIRY_S_MAX: Final = 253_402_300_799
# A grant ends after a day, even if "se" is later: the client then sends its token again, which is
# verified against the present rules.
GRANT_LIFETIME_S_MAX: Final = 86_400
# Identifies a key without revealing it; 64 bits do not collide among a few hundred keys.
FINGERPRINT_SIZE_BYTES: Final = 8
SIGNATURE_SIZE_BYTES: Final = 32
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
"""Host names of the machine itself."""

RuleLookup = Callable[[str], RuleSet | None]
"""The rules of one canonical path; "" is the namespace itself. None for a path without rules."""

_FIELDS: Final = frozenset({"sr", "sig", "se", "skn"})
_EXPIRY = re.compile(r"[0-9]{1,12}", re.ASCII)
_PRINTABLE = re.compile(r"[!-~]+", re.ASCII)
# A percent sign must be followed by two hexadecimal digits: thousands of others would each become
# an object in unquote().
_ENCODED = re.compile(r"(?:[!-$&-~]|%[0-9A-Fa-f]{2})+", re.ASCII)
_RESOURCE = re.compile(
    r"(?:sb|amqps?|https?)://"
    r"(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?P<path>/[^?#]*)?",
    re.ASCII | re.IGNORECASE,
)
_DUMMY_KEY: Final = "no rule has this key"

# One text for all refusals that a client must not be able to distinguish (rule 2).
_REFUSED: Final = "The rule name or the signature of the token is wrong"
_REFUSED_HINT: Final = "Check SharedAccessKeyName and SharedAccessKey"
_FIELDS_WRONG: Final = "The token must have the fields sr, sig, se and skn exactly once each"
_FORM_HINT: Final = "Let the SDK create the token from the connection string"


@dataclass(frozen=True, slots=True)
class SasToken:
    """A well-formed token. ``verify`` checks whether it is valid."""

    resource: str
    """The ``sr`` field, decoded once."""
    expiry_s: int
    rule_name: str
    signed_text: str = field(repr=False)
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Audience:
    """The host names and ports that tokens may name for a namespace."""

    host_names: frozenset[str]
    """Lower case."""
    port: int
    """A resource without a port fits; one with another port does not."""
    any_name: bool = False
    """Whether clients may use host names that the broker does not know, for example when it
    listens on all addresses. On loopback all names are known: a token for another host is for
    another namespace."""
    other_ports: frozenset[int] = frozenset()
    """More ports of the same namespace."""

    def known_as(self, host_name: str | None) -> Audience:
        """The same with one more host name, if the client may choose it (``any_name``)."""
        if not host_name or not self.any_name:
            return self
        return replace(self, host_names=self.host_names | {host_name.lower()})

    def answers_to(self, host_name: str | None) -> bool:
        """Whether this host name stands for this namespace."""
        return bool(host_name) and str(host_name).lower() in self.host_names

    def has_port(self, port: int) -> bool:
        return port == self.port or port in self.other_ports


@dataclass(frozen=True, slots=True)
class AccessGrant:
    """What a verified token allows, where, and until when."""

    segments: tuple[str, ...]
    """Canonical; empty for the whole namespace."""
    claims: Claim
    expires_s: int
    scope: str
    """Where the rule is defined: "" for the namespace, otherwise an entity's canonical path."""
    rule_name: str
    key_fingerprint: str
    """Which key signed the token; see ``is_backed``."""

    def covers(self, segments: tuple[str, ...]) -> bool:
        """Whether both the token's resource and the scope of its rule cover a canonical path."""
        if segments[: len(self.segments)] != self.segments:
            return False
        return not self.scope or self.scope == owning_entity(segments)


def parse_token(text: str) -> SasToken:
    """Read a token strictly; raises AccessDenied for any other form."""
    if len(text) > TOKEN_LENGTH_MAX:
        raise AccessDenied(
            f"The token has {len(text)} characters, the maximum is {TOKEN_LENGTH_MAX}",
            hint=_FORM_HINT,
        )
    if not text.startswith(TOKEN_PREFIX):
        raise AccessDenied("The token is not a shared access signature", hint=_FORM_HINT)
    values = _fields(text[len(TOKEN_PREFIX) :])
    if not _EXPIRY.fullmatch(values["se"]) or int(values["se"]) > EXPIRY_S_MAX:
        raise AccessDenied(
            "The expiry of the token is not a number of seconds",
            hint="Use seconds since 1970-01-01, up to the year 9999",
        )
    return SasToken(
        resource=_decoded(values["sr"], "resource"),
        expiry_s=int(values["se"]),
        rule_name=_rule_name(values["skn"]),
        signed_text=f"{values['sr']}\n{values['se']}",
        signature=_signature(values["sig"]),
    )


def verify(token: SasToken, *, audience: Audience, rules: RuleLookup, now_s: float) -> AccessGrant:
    """What the token grants; AccessDenied if it is invalid, expired or for another namespace."""
    segments = parse_resource(token.resource, audience)
    found = _signer(token, segments, rules)
    if found is None:
        raise AccessDenied(_REFUSED, hint=_REFUSED_HINT)
    if token.expiry_s <= now_s:
        raise AccessDenied("The token has expired", hint="Check the clocks of both machines")
    scope, rule, key = found
    return AccessGrant(
        segments=segments,
        claims=rule.claims,
        expires_s=min(token.expiry_s, int(now_s) + GRANT_LIFETIME_S_MAX),
        scope=scope,
        rule_name=rule.name,
        key_fingerprint=_fingerprint(key),
    )


def is_backed(grant: AccessGrant, rules: RuleLookup) -> bool:
    """Whether the rule and the key behind this grant still exist, with all its claims."""
    scope_rules = rules(grant.scope)
    rule = scope_rules.find(grant.rule_name) if scope_rules is not None else None
    if rule is None or grant.claims not in rule.claims:
        return False
    return grant.key_fingerprint in [_fingerprint(key) for key in rule.keys]


def parse_resource(text: str, audience: Audience) -> tuple[str, ...]:
    """The canonical path segments of a resource URL in this namespace; raises AccessDenied."""
    match = _RESOURCE.fullmatch(text)
    if match is None:
        raise AccessDenied(
            "The resource of the token is not a URL of a namespace",
            hint="Sign for sb://<host>:<port>/",
        )
    port = match["port"]
    if match["host"].lower() not in audience.host_names or (
        port and not audience.has_port(int(port))
    ):
        raise AccessDenied(
            "The token was signed for another namespace",
            hint="Sign for the host name and port of the connection string",
        )
    try:
        return parse_resource_segments((match["path"] or "/")[1:])
    except InvalidEntityPath:
        raise AccessDenied(
            "The resource of the token is not the path of an entity",
            hint="Sign for the exact path of the entity",
        ) from None


def _signer(
    token: SasToken, segments: tuple[str, ...], rules: RuleLookup
) -> tuple[str, AuthorizationRule, str] | None:
    """The scope, rule and key that signed, after comparing with every candidate."""
    found = None
    candidates = 0
    for scope in dict.fromkeys(("", owning_entity(segments))):
        scope_rules = rules(scope)
        rule = scope_rules.find(token.rule_name) if scope_rules is not None else None
        for key in rule.keys if rule is not None else ():
            candidates += 1
            if _is_signed_with(key, token) and rule is not None and found is None:
                found = (scope, rule, key)
    for _ in range(candidates, 2):
        # An unknown name takes as long as a known one: two signatures are computed.
        _is_signed_with(_DUMMY_KEY, token)
    return found


def _is_signed_with(key: str, token: SasToken) -> bool:
    return hmac.compare_digest(keyed_digest(key, token.signed_text), token.signature)


def _fingerprint(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8")).hexdigest()[: 2 * FINGERPRINT_SIZE_BYTES]


def _fields(text: str) -> dict[str, str]:
    if not _PRINTABLE.fullmatch(text):
        raise AccessDenied("The token contains an invalid character", hint=_FORM_HINT)
    values: dict[str, str] = {}
    for part in text.split("&"):
        name, _, value = part.partition("=")
        if name not in _FIELDS or name in values or not value:
            raise AccessDenied(_FIELDS_WRONG, hint=_FORM_HINT)
        values[name] = value
    if len(values) != len(_FIELDS):
        raise AccessDenied(_FIELDS_WRONG, hint=_FORM_HINT)
    return values


def _decoded(text: str, what: str) -> str:
    """Percent-decode once. A percent sign in the result means that it was encoded twice."""
    # Bytes that are not text become U+FFFD, which is not printable ASCII either.
    decoded = unquote(text, errors="replace") if _ENCODED.fullmatch(text) else "%"
    if "%" in decoded or not _PRINTABLE.fullmatch(decoded):
        raise AccessDenied(
            f"The {what} of the token is not percent-encoded exactly once", hint=_FORM_HINT
        )
    return decoded


def _rule_name(text: str) -> str:
    name = _decoded(text, "rule name")
    try:
        check_rule_name(name)
    except ConfigurationError:
        # No rule can have this name: the error is that of an unknown one.
        raise AccessDenied(_REFUSED, hint=_REFUSED_HINT) from None
    return name


def _signature(text: str) -> bytes:
    try:
        signature = base64.b64decode(_decoded(text, "signature"), validate=True)
    except (binascii.Error, ValueError):
        signature = b""
    if len(signature) != SIGNATURE_SIZE_BYTES:
        raise AccessDenied(_REFUSED, hint=_REFUSED_HINT)
    return signature


# One token for each link that a connection may have; more is a flood, not an application.
GRANTS_PER_CONNECTION_MAX: Final = 1_024


class Grants:
    """The grants of one connection."""

    __slots__ = ("_by_segments", "_grants")

    def __init__(self) -> None:
        self._grants: dict[tuple[object, ...], AccessGrant] = {}
        self._by_segments: dict[tuple[str, ...], dict[tuple[object, ...], AccessGrant]] = {}
        """The same by the path of their resource; few have the same path."""

    def __len__(self) -> int:
        return len(self._grants)

    def add(self, grant: AccessGrant, *, now_s: float) -> None:
        """Add a grant; a renewed one replaces the one it renews."""
        key = (grant.segments, grant.scope, grant.rule_name, grant.key_fingerprint)
        self._grants.pop(key, None)
        self._grants[key] = self._by_segments.setdefault(grant.segments, {})[key] = grant
        if len(self._grants) > GRANTS_PER_CONNECTION_MAX:
            self._make_room(now_s)

    def allows(self, entity_path: str, claim: Claim, *, now_s: float) -> bool:
        """Whether all of ``claim`` is granted on the canonical path (an Address's ``path``)."""
        return self.allowed_until_s(entity_path, claim, now_s=now_s) is not None

    def allowed_until_s(self, entity_path: str, claim: Claim, *, now_s: float) -> int | None:
        """When the last grant that covers this ends; None if no grant covers it now."""
        segments = tuple(entity_path.split("/"))
        ends = [
            grant.expires_s
            for length in range(len(segments) + 1)
            for grant in self._by_segments.get(segments[:length], _NONE).values()
            if grant.expires_s > now_s and claim in grant.claims and grant.covers(segments)
        ]
        return max(ends, default=None)

    def last_until_s(self, *, now_s: float) -> int | None:
        """When the last of the grants ends; None if all have ended, which are then removed."""
        ends = [grant.expires_s for grant in self._grants.values() if grant.expires_s > now_s]
        if not ends:
            self._grants.clear()
            self._by_segments.clear()
        return max(ends, default=None)

    def drop_unbacked(self, rules: RuleLookup) -> bool:
        """Remove grants whose key or rule no longer exists; returns whether there were any."""
        # A thousand grants have a few keys, and each comparison of a key computes a digest.
        backed: dict[tuple[object, ...], bool] = {}
        unbacked = []
        for key, grant in self._grants.items():
            signer = (grant.scope, grant.rule_name, grant.key_fingerprint, grant.claims)
            if signer not in backed:
                backed[signer] = is_backed(grant, rules)
            if not backed[signer]:
                unbacked.append(key)
        for key in unbacked:
            self._drop(key)
        return bool(unbacked)

    def _make_room(self, now_s: float) -> None:
        for key in [key for key, grant in self._grants.items() if grant.expires_s <= now_s]:
            self._drop(key)
        while len(self._grants) > GRANTS_PER_CONNECTION_MAX:
            self._drop(next(iter(self._grants)))

    def _drop(self, key: tuple[object, ...]) -> None:
        grant = self._grants.pop(key)
        same_path = self._by_segments[grant.segments]
        del same_path[key]
        if not same_path:
            del self._by_segments[grant.segments]


_NONE: Final[dict[tuple[object, ...], AccessGrant]] = {}
