"""Tokens, made in one place for AMQP and for HTTP."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.broker.access.sas import Audience, parse_token, verify
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.credentials import IDENTITY_SCOPE, credential_in, credential_of
from twinbus.errors import AuthenticationFailed, ConfigurationError

KEY = "VGhpcyBpcyBub3QgYSBzZWNyZXQ="
RULES = RuleSet((AuthorizationRule("app", Claim.SEND, KEY, "QW5vdGhlciBvbmU="),))
AUDIENCE = Audience(frozenset({"localhost"}), 5672)


async def test_a_key_makes_a_token_that_the_broker_takes() -> None:
    parsed = parse_connection_string(
        f"Endpoint=sb://localhost;SharedAccessKeyName=app;SharedAccessKey={KEY}"
    )

    token = await credential_in(parsed).token_for("sb://localhost:5672/orders")

    grant = verify(
        parse_token(token.http_header),
        audience=AUDIENCE,
        rules=lambda path: RULES if not path else None,
        now_s=time.time(),
    )
    assert grant.segments == ("orders",) and grant.claims == Claim.SEND
    assert token.kind == "sas" and grant.expires_s == token.expires_s


@pytest.mark.parametrize("prefix", ["", "SharedAccessSignature "])
async def test_a_ready_made_signature_is_shown_as_it_is(prefix: str) -> None:
    parsed = parse_connection_string(
        f"Endpoint=sb://localhost;SharedAccessSignature={prefix}sr=a&sig=b&se=1&skn=c"
    )
    token = await credential_in(parsed).token_for("sb://localhost/")
    assert token.http_header == "SharedAccessSignature sr=a&sig=b&se=1&skn=c"


class AsyncIdentity:
    async def get_token(self, *scopes: str, **_options: Any) -> Any:
        return SimpleNamespace(token=f"jwt for {scopes[0]}", expires_on=2_000_000_000)


class SyncIdentity:
    def get_token(self, *scopes: str, **_options: Any) -> Any:
        return SimpleNamespace(token=f"jwt for {scopes[0]}", expires_on=2_000_000_000)


@pytest.mark.parametrize("identity", [AsyncIdentity(), SyncIdentity()])
async def test_an_identity_is_asked_for_the_service_whatever_its_kind(identity: Any) -> None:
    token = await credential_of(identity).token_for("sb://localhost/orders")
    assert token.http_header == f"Bearer jwt for {IDENTITY_SCOPE}"
    assert token.kind == "jwt" and token.expires_s == 2_000_000_000


async def test_an_identity_that_fails_is_an_authentication_failure() -> None:
    class Broken:
        async def get_token(self, *_scopes: str, **_options: Any) -> Any:
            raise RuntimeError("secret=hunter2")

    with pytest.raises(AuthenticationFailed) as caught:
        await credential_of(Broken()).token_for("sb://localhost/")
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_gives_no_token_is_no_credential() -> None:
    with pytest.raises(ConfigurationError, match="must have get_token"):
        credential_of("password")  # type: ignore[arg-type]


async def test_no_secret_is_in_a_repr() -> None:
    parsed = parse_connection_string(
        f"Endpoint=sb://localhost;SharedAccessKeyName=app;SharedAccessKey={KEY}"
    )
    credential = credential_in(parsed)
    token = await credential.token_for("sb://localhost/")
    assert KEY not in repr(credential)
    assert token.text not in repr(token)
