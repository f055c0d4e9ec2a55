"""How many connections fit the descriptors of a process."""

from __future__ import annotations

import resource

import pytest

from twinbus.broker.file_descriptors import RESERVED, fit_connections, raise_descriptor_limit
from twinbus.broker.options import BrokerOptions
from twinbus.errors import ConfigurationError


@pytest.mark.parametrize("namespaces", [1, 2, 5])
@pytest.mark.parametrize("limit", [512, 1_024, 4_096, 20_000, 1_048_576])
def test_there_are_never_more_connections_than_descriptors(limit: int, namespaces: int) -> None:
    """M13: strangers among them, on every port, the administration's too."""
    fitted = fit_connections(BrokerOptions(), limit, namespaces)

    per_port = fitted.strangers_max + fitted.tarpit_max
    used = namespaces * (fitted.connections_max + per_port) + per_port
    assert used <= limit - RESERVED
    assert fitted.connections_max > fitted.strangers_max or limit < 1_024


def test_where_there_are_enough_nothing_changes() -> None:
    for limit in (80_000, None):
        fitted = fit_connections(BrokerOptions(), limit, 2)
        assert fitted == BrokerOptions(tarpit_max=16 * BrokerOptions().strangers_max)
    assert 1_000 < fit_connections(BrokerOptions(), 20_000, 2).tarpit_max < 8_192


def test_too_few_for_a_broker_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"100 open files.*ulimit -n"):
        fit_connections(BrokerOptions(), 100, 1)


def test_no_limit_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (infinity, infinity))
    assert raise_descriptor_limit() is None
