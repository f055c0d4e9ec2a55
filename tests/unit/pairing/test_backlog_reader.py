"""What the backlog queues hold, and how much asking that takes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from tests.support.pairing.fake_namespace import FakeNamespace
from tests.support.pairing.pairs import FakePair, OpenPair
from twinbus.aio import BrokeredMessage, NamespaceManager
from twinbus.common.connection_string import parse_connection_string
from twinbus.common.sas_token import make_token
from twinbus.drivers.administration import MessageCounts, QueueProperties
from twinbus.errors import AccessRefused, EntityNotFound, OperationTimeout
from twinbus.pairing.backlog_monitor import BacklogReader
from twinbus.testing import NamespacePairFixture

QUEUES = [f"Contoso/x-servicebus-transfer/{index}" for index in range(3)]


class FakeManager:
    """Counts what a fake namespace holds, and how often it is asked."""

    def __init__(self, namespace: FakeNamespace, others: int = 0) -> None:
        self._namespace = namespace
        self._others = others
        self.counts_late = False
        self.refusal: Exception | None = None
        self.lists_nothing_of = ""
        self.listings = 0
        self.named: list[str] = []

    async def get_queues(self, prefix: str = "") -> AsyncIterator[QueueProperties]:
        self.listings += 1
        if self.refusal is not None:
            raise self.refusal
        for index in range(self._others):
            yield QueueProperties(path=f"another/{index}")
        for path in QUEUES:
            if path != self.lists_nothing_of:
                yield self._counted(path.lower())

    async def get_queue(self, path: str) -> QueueProperties:
        self.named.append(path)
        if path == "gone":
            raise EntityNotFound("there is no queue 'gone'")
        return self._counted(path)

    def _counted(self, path: str) -> QueueProperties:
        [known] = [each for each in QUEUES if each.lower() == path.lower()]
        held = [] if self.counts_late else self._namespace.messages(known)
        return QueueProperties(path=path, counts=MessageCounts(active=len(held)))


class Asked:
    """A reader over fakes."""

    def __init__(self, others: int = 0, queues: list[str] | None = None) -> None:
        self.namespace = FakeNamespace("fabrikam")
        self.manager = FakeManager(self.namespace, others)
        self.reader = BacklogReader(self.namespace, self.manager, queues or QUEUES)  # type: ignore[arg-type]

    async def messages(self) -> list[int | None]:
        return [each.messages for each in await self.reader.read()]


async def test_one_listing_counts_all_queues() -> None:
    """P16: whatever the case of their letters; nothing is peeked at where nothing is."""
    asked = Asked()
    asked.namespace.messages(QUEUES[1]).append(b"one")
    asked.namespace.answer(QUEUES[0], RuntimeError("nobody shall ask here"))
    found = await asked.reader.read()
    assert [each.queue for each in found] == QUEUES
    assert [each.messages for each in found] == [0, 1, 0]
    assert [each.oldest_sequence_number is not None for each in found] == [False, True, False]
    assert (asked.manager.listings, asked.manager.named) == (1, [])


async def test_a_queue_that_held_messages_is_not_called_empty_because_of_a_count() -> None:
    """P16: `drained` is true: a namespace may count late."""
    asked = Asked()
    asked.namespace.messages(QUEUES[2]).append(b"one")
    await asked.reader.read()
    asked.manager.counts_late = True
    [*_, last] = await asked.reader.read()
    assert last.messages == 0 and last.oldest_sequence_number is not None
    asked.namespace.messages(QUEUES[2]).clear()
    [*_, last] = await asked.reader.read()
    assert last.oldest_sequence_number is None and last.reading.is_known
    # And once that is known nobody peeks again.
    asked.namespace.answer(QUEUES[2], RuntimeError("nobody shall ask here"))
    await asked.reader.read()


async def test_one_queue_is_asked_for_by_its_name() -> None:
    """C2: a listing could take more than one request."""
    asked = Asked(queues=QUEUES[:1])
    assert await asked.messages() == [0]
    assert (asked.manager.listings, asked.manager.named) == (0, QUEUES[:1])


@pytest.mark.parametrize(("others", "by_name"), [(0, False), (297, False), (298, True)])
async def test_a_listing_that_is_longer_than_asking_by_name_is_given_up(
    others: int, by_name: bool
) -> None:
    """C2: three pages of a hundred are as many requests as three names."""
    asked = Asked(others)
    assert await asked.messages() == [0, 0, 0]
    asked.manager.named.clear()
    assert await asked.messages() == [0, 0, 0]
    assert asked.manager.named == (QUEUES if by_name else [])
    assert asked.manager.listings == (1 if by_name else 2)


async def test_a_namespace_that_does_not_list_is_asked_by_name() -> None:
    """P16: a key of the backlog queues alone may ask for each of them."""
    asked = Asked()
    asked.manager.refusal = AccessRefused("the claim Manage is missing")
    for _ in range(2):
        assert await asked.messages() == [0, 0, 0]
    assert asked.manager.listings == 1


async def test_a_namespace_that_is_away_is_not_asked_for_each_queue() -> None:
    """P16: one question without an answer is enough; the next look lists again."""
    asked = Asked()
    asked.manager.refusal = OperationTimeout("no answer")
    found = await asked.reader.read()
    assert [each.messages for each in found] == [None, None, None]
    assert all("o answer" in each.unknown[0] for each in found) and asked.manager.named == []
    asked.manager.refusal = None
    assert await asked.messages() == [0, 0, 0] and asked.manager.listings == 2


async def test_what_a_listing_lacks_is_asked_for_by_name() -> None:
    """P16: pages that shift while they are read lose a queue."""
    asked = Asked()
    asked.manager.lists_nothing_of = QUEUES[1]
    asked.namespace.messages(QUEUES[1]).append(b"one")
    assert await asked.messages() == [0, 1, 0]
    assert asked.manager.named == [QUEUES[1]]


async def test_a_queue_that_is_gone_is_said() -> None:
    """P16: its count is unknown, with the reason."""
    asked = Asked(queues=[*QUEUES, "gone"])
    [*_, gone] = await asked.reader.read()
    assert gone.messages is None and "no queue" in gone.unknown[0]


async def test_what_may_not_be_asked_is_said(fake_pair: FakePair) -> None:
    """P5: counts need Manage, the age needs Listen."""
    fake_pair.primary.force_failover("orders")
    await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    fake_pair.away.answer("*", AccessRefused("the claim Listen is missing"))
    for queue in await fake_pair.primary.backlog():
        assert queue.messages is queue.percent_full is queue.oldest_age_s is None
        assert len(queue.unknown) == 2
        assert "Manage" in queue.unknown[0] and "Listen" in queue.unknown[1]


async def test_the_backlog_of_real_namespaces(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture
) -> None:
    """P16: depth, age and percent full of every queue."""
    servicebus_pair.primary.queue("orders")
    pair = await open_pair(backlog_queue_count=2)
    pair.primary.force_failover("orders")
    sender = pair.primary.create_message_sender("orders")
    for _ in range(3):
        await sender.send(BrokeredMessage(bytes(1_000)))
    empty, found = sorted(await pair.primary.backlog(), key=lambda each: each.messages or 0)
    assert (found.messages, found.dead_letters, found.unknown) == (3, 0, ())
    assert found.oldest_age_s is not None and 0 <= found.oldest_age_s < 60
    assert found.percent_full is not None and 0 < found.percent_full < 1
    assert (empty.messages, empty.oldest_age_s, empty.unknown) == (0, None, ())


async def test_a_key_of_the_backlog_queues_alone_is_enough(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture
) -> None:
    """P5: Manage on each backlog queue counts them; a real broker does not list for it."""
    away = servicebus_pair.secondary
    pair = await open_pair(backlog_queue_count=3)
    given = parse_connection_string(away.connection_string)
    signature = make_token(
        resource=f"http://localhost:{away.port}/{servicebus_pair.primary.name}/",
        rule_name=given.shared_access_key_name or "",
        key=given.shared_access_key or "",
        expires_s=int(time.time()) + 60,
    )
    manager = NamespaceManager.from_connection_string(
        f"Endpoint=sb://localhost:{away.port};SharedAccessSignature={signature};"
        "UseDevelopmentEmulator=true"
    )
    queues = [f"{servicebus_pair.primary.name}/x-servicebus-transfer/{index}" for index in range(3)]
    with pytest.raises(AccessRefused):
        _ = [each async for each in manager.get_queues()]
    found = await BacklogReader(pair.secondary.driver, manager, queues).read()
    assert [(each.messages, each.unknown) for each in found] == [(0, ())] * 3
