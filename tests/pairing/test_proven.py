"""What the factories of a process know together about their credentials."""

from __future__ import annotations

from twinbus.aio import MessagingFactory
from twinbus.drivers.credentials import SharedKey
from twinbus.drivers.port import NamespaceAddress
from twinbus.pairing.proven import memory_of

HERE, THERE = NamespaceAddress("contoso", 5671), NamespaceAddress("fabrikam", 5671)


def test_a_credential_that_worked_is_known_to_every_factory_of_the_process() -> None:
    """P7: same place, same credential; nothing else."""
    text = "Endpoint=sb://contoso.example;SharedAccessKeyName=app;SharedAccessKey=a2V5"
    one, two, other = (
        MessagingFactory.from_connection_string(each, driver="amqp")
        for each in (text, text, text.replace("=app", "=other"))
    )
    one.routing.rules.credential.has_worked = True
    assert two.routing.rules.credential.has_worked
    assert not other.routing.rules.credential.has_worked


def test_what_is_not_known_to_be_the_same_is_not() -> None:
    key = SharedKey("app", "a2V5")
    known = memory_of(HERE, key)
    assert memory_of(HERE, SharedKey("app", "a2V5")) is known
    assert memory_of(THERE, key) is not known
    assert memory_of(HERE, None) is not memory_of(HERE, None)


def test_a_credential_without_a_hash_is_its_own() -> None:
    class Own:
        __hash__ = None  # type: ignore[assignment]

        async def token_for(self, resource: str) -> object: ...

    own = Own()
    assert memory_of(HERE, own) is not memory_of(HERE, own)  # type: ignore[arg-type]
