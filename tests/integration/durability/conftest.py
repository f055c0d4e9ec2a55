"""A broker whose disk the tests spoil, with short pauses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.durability.broker_thread import BrokerThread
from twinbus.broker.namespace import forwarder as forwarding_module
from twinbus.broker.namespace import namespace as namespace_module


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerThread]:
    monkeypatch.setattr(namespace_module, "FULL_DISK_PAUSE_S", 0.05)
    monkeypatch.setattr(forwarding_module, "RETRY_S", 0.05)
    with BrokerThread(tmp_path / "data", monkeypatch) as running:
        yield running
