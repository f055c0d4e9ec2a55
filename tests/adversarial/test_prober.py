"""The prober itself: it measures, and it complains."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.adversarial.prober import attacked
from tests.support.broker_process import BrokerProcess


def test_a_quiet_broker_passes(broker: BrokerProcess) -> None:
    """M13: what is measured when nobody attacks is within the limits of an attack."""
    with attacked(broker) as attack:
        attack.lasted(1.0)
    assert attack.calm_ms and attack.seen_ms


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that can be stopped: the others have a bystander who would notice."""
    with BrokerProcess(tmp_path_factory.mktemp("probed") / "data") as running:
        yield running


def test_a_broker_that_is_stopped_again_and_again_fails(own_broker: BrokerProcess) -> None:
    """M13: the check can fail: most of the time the broker does nothing.

    A stop lasts far longer than the limit that a busy machine gets (limit times slowdown), and
    there are more stops than one operation in a hundred.
    """

    def stop_often() -> None:
        for _stop in range(4):
            os.kill(own_broker.pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(own_broker.pid, signal.SIGCONT)
            time.sleep(0.1)

    with pytest.raises(AssertionError, match=r"p99|prober"), attacked(own_broker):
        stop_often()
