"""What the factories of a process know together about their credentials."""

from __future__ import annotations

from twinbus.aio import MessagingFactory
from twinbus.drivers.credentials import SharedKey
from twinbus.drivers.interface import NamespaceAddress
from twinbus.pairing.client.factory_options import credential_history_for

HERE, THERE = NamespaceAddress("contoso", 5671), NamespaceAddress("fabrikam", 5671)


def test_a_credential_that_worked_is_known_to_every_factory_of_the_process() -> None:
    """P7: same place, same credential; nothing else."""
    text = "Endpoint=sb://contoso.example;SharedAccessKeyName=app;SharedAccessKey=a2V5"
    one, two, other = (
        MessagingFactory.from_connection_string(each, driver="amqp")
        for each in (text, text, text.replace("=app", "=other"))
    )
    one.routing.rules.credential.has_succeeded = True
    assert two.routing.rules.credential.has_succeeded
    assert not other.routing.rules.credential.has_succeeded


def test_what_is_not_known_to_be_the_same_is_not() -> None:
    key = SharedKey("app", "a2V5")
    known = credential_history_for(HERE, key)
    assert credential_history_for(HERE, SharedKey("app", "a2V5")) is known
    assert credential_history_for(THERE, key) is not known
    assert credential_history_for(HERE, None) is not credential_history_for(HERE, None)


def test_a_credential_without_a_hash_is_its_own() -> None:
    class Own:
        __hash__ = None  # type: ignore[assignment]

        async def token_for(self, resource: str) -> object: ...

    own = Own()
    assert credential_history_for(HERE, own) is not credential_history_for(HERE, own)  # type: ignore[arg-type]
