"""The SDK's credentials as ours, for what does not go through the SDK."""

from __future__ import annotations

from typing import Any

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from twinbus.drivers.credentials import Credential, IdentityToken, SharedKey, SharedSignature

# How the SDK marks the credentials that it makes of a connection string.
SAS_TOKEN_TYPE = b"servicebus.windows.net:sastoken"


def token_source(credential: Any) -> Credential:
    """The same credential, asked for a token of one resource."""
    if isinstance(credential, AzureNamedKeyCredential):
        return SharedKey(*credential.named_key)
    if isinstance(credential, AzureSasCredential):
        return SharedSignature(credential.signature)
    if getattr(credential, "token_type", None) == SAS_TOKEN_TYPE:
        if hasattr(credential, "policy"):
            return SharedKey(credential.policy, credential.key)
        return SharedSignature(credential.token)
    return IdentityToken(credential)
