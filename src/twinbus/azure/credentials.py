"""The SDK's credentials, as our management client shows them at its door."""

from __future__ import annotations

from typing import Any

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from twinbus.drivers.credentials import (
    Credential,
    IdentityToken,
    SharedKey,
    SharedSignature,
    Token,
)
from twinbus.service_errors import AuthenticationFailed

# How the SDK marks the credentials that it makes of a connection string.
SAS_TOKEN_TYPE = b"servicebus.windows.net:sastoken"


def token_source(credential: Any) -> Credential:
    """The same credential, asked for a token of one resource."""
    if isinstance(credential, AzureNamedKeyCredential):
        return SharedKey(*credential.named_key)
    if isinstance(credential, AzureSasCredential):
        return SharedSignature(credential.signature)
    if getattr(credential, "token_type", None) == SAS_TOKEN_TYPE:
        return _OfConnectionString(credential)
    return IdentityToken(credential)


class _OfConnectionString:
    """What the SDK makes of a key, or of a signature, in a connection string."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def token_for(self, resource: str) -> Token:
        try:
            found = await self._credential.get_token(resource)
        except Exception as error:
            raise AuthenticationFailed(
                f"the credential gave no token: {type(error).__name__}"
            ) from error
        return Token(str(found.token), "sas", float(found.expires_on))
