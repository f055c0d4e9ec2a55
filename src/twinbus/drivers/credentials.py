"""Who we are to a namespace: one place where tokens are made, for AMQP and for HTTP.

    SharedKey           a rule's name and key (a connection string)
    SharedSignature     a signature that somebody else made (a connection string)
    IdentityToken       a credential of an identity provider (azure-identity), async or sync

Rule 1: a token is made for one resource, shown once, and never kept in an error, a log or a repr.
Rule 2: whatever the identity provider raises is AuthenticationFailed, with its error as the cause.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

from twinbus.common.argument_types import type_shown
from twinbus.common.connection_string import ConnectionString
from twinbus.common.sas_token import TOKEN_PREFIX, make_token
from twinbus.errors import AuthenticationFailed, ConfigurationError

__all__ = [
    "AccessToken",
    "Credential",
    "IdentityCredential",
    "IdentityToken",
    "SharedKey",
    "SharedSignature",
    "credential_in",
    "credential_of",
]

# As long as the stock client's: renewed long before, short enough for a key that is taken away.
SAS_LIFETIME_S: Final = 3_600
# The permission that every data and management operation of the service asks for.
IDENTITY_SCOPE: Final = "https://servicebus.azure.net/.default"


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Something to show at a door."""

    text: str = field(repr=False)
    kind: Literal["sas", "jwt"]
    expires_s: float
    """Unix time; infinite when only the service knows."""

    @property
    def http_header(self) -> str:
        """The value of an HTTP request's Authorization."""
        return self.text if self.kind == "sas" else f"Bearer {self.text}"


@runtime_checkable
class IdentityCredential(Protocol):
    """What azure-identity's credentials look like, the async and the sync ones."""

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """A value with ``token`` and ``expires_on``, or something to await for it."""


class Credential(Protocol):
    """A source of tokens."""

    async def token_for(self, resource: str) -> AccessToken:
        """A token for a URL such as ``sb://host:5672/orders``; raises AuthenticationFailed."""


@dataclass(frozen=True, slots=True)
class SharedKey:
    """The name and the key of an access rule."""

    rule_name: str
    key: str = field(repr=False)

    async def token_for(self, resource: str) -> AccessToken:
        expires_s = int(time.time()) + SAS_LIFETIME_S
        text = make_token(
            resource=resource, rule_name=self.rule_name, key=self.key, expires_s=expires_s
        )
        return AccessToken(text, "sas", expires_s)


@dataclass(frozen=True, slots=True)
class SharedSignature:
    """A ready-made signature; where it is good and until when is its maker's business."""

    signature: str = field(repr=False)

    async def token_for(self, resource: str) -> AccessToken:
        has_prefix = self.signature.startswith(TOKEN_PREFIX)
        text = self.signature if has_prefix else TOKEN_PREFIX + self.signature
        return AccessToken(text, "sas", float("inf"))


@dataclass(frozen=True, slots=True)
class IdentityToken:
    """Tokens of an identity provider, which are good for every resource alike."""

    credential: IdentityCredential = field(repr=False)

    async def token_for(self, resource: str) -> AccessToken:
        try:
            found = await self._ask()
            return AccessToken(str(found.token), "jwt", float(found.expires_on))
        except Exception as error:
            raise AuthenticationFailed(
                f"the credential gave no token: {type(error).__name__}",
                hint="Sign in again, or check what the identity may do",
            ) from error

    async def _ask(self) -> Any:
        ask = self.credential.get_token
        if inspect.iscoroutinefunction(ask):
            return await ask(IDENTITY_SCOPE)
        # A sync credential goes over the network, and may start a program, before it returns.
        found = await asyncio.to_thread(ask, IDENTITY_SCOPE)
        return await found if inspect.isawaitable(found) else found


def credential_in(parsed: ConnectionString) -> Credential:
    """What a connection string lets its holder show."""
    if parsed.shared_access_signature is not None:
        return SharedSignature(parsed.shared_access_signature)
    return SharedKey(parsed.shared_access_key_name or "", parsed.shared_access_key or "")


def credential_of(given: Credential | IdentityCredential) -> Credential:
    """A credential as the caller of a constructor gave it."""
    if isinstance(given, SharedKey | SharedSignature | IdentityToken):
        return given
    if isinstance(given, IdentityCredential):
        return IdentityToken(given)
    raise ConfigurationError(
        f"credential must have get_token(), got {type_shown(given)}",
        hint="Give a credential of azure-identity, or use a connection string",
    )
