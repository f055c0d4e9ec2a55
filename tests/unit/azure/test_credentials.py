"""The SDK's credentials, for what does not go through the SDK."""

from __future__ import annotations

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient

from twinbus.azure.client import as_async_credential
from twinbus.azure.options import token_source
from twinbus.drivers.credentials import IdentityToken, SharedKey, SharedSignature

PLACE = "Endpoint=sb://contoso.servicebus.windows.net;"
KEYED = PLACE + "SharedAccessKeyName=sender;SharedAccessKey=aGVsbG8="
SIGNED = PLACE + "SharedAccessSignature=SharedAccessSignature sr=x&sig=y&se=9999999999&skn=z"


def test_every_kind_is_known() -> None:
    sync, aio = ServiceBusClient.from_connection_string, AioServiceBusClient.from_connection_string
    key, signature = SharedKey("sender", "aGVsbG8="), "SharedAccessSignature sr=x"
    for client in (sync(KEYED), aio(KEYED)):
        assert token_source(as_async_credential(client._credential)) == key
    for client in (sync(SIGNED), aio(SIGNED)):
        assert isinstance(token_source(as_async_credential(client._credential)), SharedSignature)
    assert token_source(AzureNamedKeyCredential("sender", "aGVsbG8=")) == key
    assert token_source(AzureSasCredential(signature)) == SharedSignature(signature)
    assert isinstance(token_source(object()), IdentityToken)
