"""Credentials for a namespace: one place where tokens are created, for AMQP and for HTTP.

    SharedKey           name and key of an access rule (a connection string)
    SharedSignature     a signature that was created elsewhere (a connection string)
    IdentityToken       a credential of an identity provider (azure-identity), async or sync

Rule 1: a token is created for one resource, sent once, and never kept in an error, a log or a
        repr.
Rule 2: every error of the identity provider is AuthenticationFailed, with the original as cause.
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

# As long as the official client's: renewed long before, short enough for a revoked key.
SAS_LIFETIME_S: Final = 3_600
# The scope that every data and management operation of the service requires.
IDENTITY_SCOPE: Final = "https://servicebus.azure.net/.default"


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token for one resource."""

    text: str = field(repr=False)
    kind: Literal["sas", "jwt"]
    expires_s: float
    """Unix time; infinite when it is unknown here."""

    @property
    def http_header(self) -> str:
        """The value of the HTTP header Authorization."""
        return self.text if self.kind == "sas" else f"Bearer {self.text}"


@runtime_checkable
class IdentityCredential(Protocol):
    """The interface of azure-identity's credentials, async and sync."""

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """A value with ``token`` and ``expires_on``, or an awaitable of one."""


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
    """A signature that was created elsewhere, with its own scope and expiry."""

    signature: str = field(repr=False)

    async def token_for(self, resource: str) -> AccessToken:
        has_prefix = self.signature.startswith(TOKEN_PREFIX)
        text = self.signature if has_prefix else TOKEN_PREFIX + self.signature
        return AccessToken(text, "sas", float("inf"))


@dataclass(frozen=True, slots=True)
class IdentityToken:
    """Tokens of an identity provider, which are valid for every resource."""

    credential: IdentityCredential = field(repr=False)

    async def token_for(self, resource: str) -> AccessToken:
        try:
            found = await self._request_token()
            return AccessToken(str(found.token), "jwt", float(found.expires_on))
        except Exception as error:
            raise AuthenticationFailed(
                f"The credential returned no token: {type(error).__name__}",
                hint="Sign in again, or check the permissions of the identity",
            ) from error

    async def _request_token(self) -> Any:
        get_token = self.credential.get_token
        if inspect.iscoroutinefunction(get_token):
            return await get_token(IDENTITY_SCOPE)
        # A sync credential uses the network, and may start a program, before it returns.
        found = await asyncio.to_thread(get_token, IDENTITY_SCOPE)
        return await found if inspect.isawaitable(found) else found


def credential_in(parsed: ConnectionString) -> Credential:
    """The credential in a connection string."""
    if parsed.shared_access_signature is not None:
        return SharedSignature(parsed.shared_access_signature)
    return SharedKey(parsed.shared_access_key_name or "", parsed.shared_access_key or "")


def credential_of(given: Credential | IdentityCredential) -> Credential:
    """The credential for an argument of a constructor."""
    if isinstance(given, SharedKey | SharedSignature | IdentityToken):
        return given
    if isinstance(given, IdentityCredential):
        return IdentityToken(given)
    raise ConfigurationError(
        f"Invalid value for credential: it must have get_token(), got {type_shown(given)}",
        hint="Use a credential of azure-identity, or a connection string",
    )
