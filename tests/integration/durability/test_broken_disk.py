"""A disk that fails for real: every write of a running broker returns an error.

The kernel refuses to let files grow past a limit that is set from outside, which is as near to
a dying disk as one gets without root.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.integration.durability.history import History
from tests.integration.durability.load import Sender
from tests.integration.durability.taking_stock import take_stock
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient
from twinbus.amqp.errors import Condition
from twinbus.amqp.events import ConnectionClosed

QUEUE = "orders"

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux limits another process"
)


def break_disk(broker: BrokerProcess) -> None:
    psutil.Process(broker.pid).rlimit(psutil.RLIMIT_FSIZE, (0, 0))


def health_status(broker: BrokerProcess) -> tuple[int, str]:
    status, answer = broker.http("GET", "/health")
    return status, answer["status"]


@pytest.mark.parametrize("life_s", [0.0, 0.1, 0.3])
def test_nothing_is_acknowledged_after_the_disk_broke(life_s: float, tmp_path: Path) -> None:
    """M8: the broker stops to be safe, says so, and a restart finds all it had acknowledged."""
    history = History()
    with BrokerProcess(tmp_path / "data") as broker:
        broker.create_queue(QUEUE)

        # Given a sender at work
        history.life += 1
        with contextlib.closing(WireClient(broker.port).open()) as bystander:
            sender = Sender(broker.port, broker.token(), QUEUE, history, Random(1))
            sender.start()
            assert sender.has_begun.wait(20)
            time.sleep(life_s)

            # When the disk breaks
            break_disk(broker)

            # Then everybody is cut off with a reason
            closed = bystander.wait_for(ConnectionClosed)
            assert closed.error is not None
            assert closed.error.condition == Condition.INTERNAL_ERROR
        sender.finish()
        acknowledged = history.acknowledged["sends"]

        # And the broker says that it failed, and acknowledges nothing more
        assert health_status(broker) == (503, "failed")
        late = Sender(broker.port, broker.token(), QUEUE, history, Random(2))
        late.start()
        assert not late.has_begun.wait(0.3)
        late.finish()
        assert history.acknowledged["sends"] == acknowledged

        # And with a good disk it finds everything again
        broker.kill()
        broker.restart()
        history.life += 1
        history.check(take_stock(broker, QUEUE, history))
    assert history.complaints == []
