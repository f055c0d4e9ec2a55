"""One broker and one bystander for all hostile cases, and the guards around each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.adversarial.backlog import Backlog
from tests.adversarial.guards import (
    BYSTANDER_QUEUE,
    SLOW_SHARE_MAX,
    VAULT_QUEUE,
    Bystander,
    Guard,
    fill_vault,
    guarded,
)
from tests.adversarial.raw_peer import RawPeer
from tests.support.broker_process import BrokerProcess
from tests.support.mover.brokers import Pair


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """``twinbus serve`` in a process of its own, with a vault and a bystander's queue."""
    data = tmp_path_factory.mktemp("hostile") / "data"
    with BrokerProcess(data, queues=(BYSTANDER_QUEUE, VAULT_QUEUE)) as running:
        fill_vault(running)
        yield running
        assert running.is_alive, running.log()


@pytest.fixture(scope="session")
def bystander(broker: BrokerProcess) -> Iterator[Bystander]:
    """A healthy client on another connection, at work during every case."""
    running = Bystander(broker).start()
    yield running
    running.stop()
    assert running.failure is None, running.failure
    share = running.slow_share()
    assert share <= SLOW_SHARE_MAX, f"G2: {share:.1%} of all operations took too long"
    assert broker.queue(BYSTANDER_QUEUE)["active_message_count"] == 0, "G4: messages are left"


@pytest.fixture(autouse=True)
def around(request: pytest.FixtureRequest) -> Iterator[None]:
    """The guards of a case; for a pair of brokers, which no bystander uses, G1 and G5."""
    if "standing_pair" not in request.fixturenames:
        request.getfixturevalue("guard")
        yield
        return
    pair: Pair = request.getfixturevalue("standing_pair")
    yield
    for broker in (pair.primary, pair.secondary):
        assert broker.is_alive, f"G1: the broker is gone\n{broker.log()[-4_000:]}"
        assert "Traceback" not in broker.log(), "G5: a traceback in the log"


@pytest.fixture
def guard(broker: BrokerProcess, bystander: Bystander) -> Iterator[Guard]:
    """G1 to G7 around every case."""
    with guarded(broker, bystander) as around:
        yield around


@pytest.fixture
def peer(broker: BrokerProcess, guard: Guard) -> Iterator[RawPeer]:
    """A hostile peer; everything it hears is searched for secrets."""
    with RawPeer(broker.port, broker.token(), timeout_s=guard.answer_timeout_s) as raw:
        guard.heard = raw.heard
        yield raw


@pytest.fixture(scope="session")
def standing_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two brokers for what is written into a backlog."""
    with Pair(tmp_path_factory.mktemp("backlog")) as pair:
        yield pair


@pytest.fixture
async def backlog(standing_pair: Pair) -> AsyncIterator[Backlog]:
    opened = Backlog(standing_pair)
    yield opened
    await opened.close()
