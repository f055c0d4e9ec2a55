"""Paired clients over two namespaces of the background broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twinbus.azure import Pairing
from twinbus.testing import NamespacePairFixture

MakePairing = Callable[..., Pairing]


@pytest.fixture
def pairing(servicebus_pair: NamespacePairFixture) -> MakePairing:
    """A pairing with the secondary that fails over at once; the primary is known by its name,
    because these tests begin with it down, too."""

    def make(**chosen: Any) -> Pairing:
        return Pairing(
            **{
                "secondary": servicebus_pair.secondary.connection_string,
                "backlog_queue_count": 2,
                "failover_interval": 0,
                "ping_primary_interval": 1,
                "namespace_name": "home",
                **chosen,
            }
        )

    return make
