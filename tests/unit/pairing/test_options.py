"""What can be said about a pair, and what is refused before anything is contacted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.pairing.fake_namespace import FakeNamespace
from twinbus.aio import (
    MessagingFactory,
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)
from twinbus.encoding.envelope.fields import TtlPolicy
from twinbus.errors import ConfigurationError, InvalidEntityPath

FACTORY = MessagingFactory.from_driver(FakeNamespace())


def options(*values: Any, **named: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(None, FACTORY, *values, **named)


def test_the_defaults_are_those_of_the_original() -> None:
    """P2: 10 queues, a minute, no syphon, a ping a minute."""
    made = options()
    assert isinstance(made, PairedNamespaceOptions)
    assert made.secondary_messaging_factory is FACTORY
    assert made.backlog_queue_count == 10
    assert made.failover_interval == made.ping_primary_interval == timedelta(minutes=1)
    assert made.enable_syphon is False


def test_intervals_are_seconds_or_timedeltas() -> None:
    """P2: both ways of saying five seconds are one value."""
    made = options(5, 2.5, True, ping_primary_interval=timedelta(seconds=5))
    assert made.failover_interval == timedelta(seconds=2.5)
    assert made.ping_primary_interval == timedelta(seconds=5)
    assert made.enable_syphon is True


@pytest.mark.parametrize("count", [0, -1, 10**9, float("nan"), True, 2.0, "3", None])
def test_a_number_of_queues_that_makes_no_sense_is_refused(count: Any) -> None:
    """P2: whole numbers from 1, said when the options are built."""
    with pytest.raises(ConfigurationError, match="backlog_queue_count"):
        options(count)


@pytest.mark.parametrize(
    "interval", [-1, 3_601, 10**9, 1e300, float("nan"), float("inf"), True, "60", None]
)
def test_a_failover_interval_outside_an_hour_is_refused(interval: Any) -> None:
    """P2: 0 to 60 minutes."""
    with pytest.raises(ConfigurationError, match="failover_interval"):
        options(1, interval)


@pytest.mark.parametrize("interval", [0, 0.999, 1_801, timedelta(minutes=31), float("nan"), True])
def test_a_ping_interval_outside_half_an_hour_is_refused(interval: Any) -> None:
    """P2: 1 s to 30 minutes."""
    with pytest.raises(ConfigurationError, match="ping_primary_interval"):
        options(ping_primary_interval=interval)


def test_the_ends_of_all_ranges_are_taken() -> None:
    """P2: the limits themselves are fine."""
    assert options(1, 0).failover_interval == timedelta()
    assert options(1_000, timedelta(minutes=60)).failover_interval == timedelta(hours=1)
    for seconds in (1, 1_800):
        made = options(ping_primary_interval=seconds)
        assert made.ping_primary_interval == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ping_mode", "knock"),
        ("enable_syphon", 1),
        ("namespace_name", "a/b"),
        ("ttl_policy", "never"),
        ("ttl_policy", None),
        ("allowed_destinations", "orders*"),
        ("allowed_destinations", ("orders", 1)),
    ],
)
def test_other_nonsense_is_refused(name: str, value: Any) -> None:
    """P2: every field is looked at."""
    with pytest.raises(ConfigurationError):
        options(**{name: value})


def test_a_policy_may_be_a_word() -> None:
    """P2 and Y8: whoever gives the word of the command line gets the same policy."""
    assert options(ttl_policy="elapsed").ttl_policy is TtlPolicy.ELAPSED


def test_the_name_of_a_namespace_is_a_name() -> None:
    """P4: it becomes part of paths, in its canonical form."""
    assert options(namespace_name="Contoso").namespace_name == "contoso"
    with pytest.raises(InvalidEntityPath):
        options(namespace_name="../contoso")


def test_options_do_not_change() -> None:
    """P2: only pairing sets the number of queues that it found."""
    with pytest.raises(AttributeError):
        options().failover_interval = timedelta()  # type: ignore[misc]


def test_a_slip_in_an_option_of_a_factory_is_told() -> None:
    text = "Endpoint=sb://h;SharedAccessKeyName=root;SharedAccessKey=a2V5"
    slip: Any = {"retry_count": 5}
    with pytest.raises(TypeError, match="retry_count"):
        MessagingFactory.from_connection_string(text, driver="amqp", **slip)


@pytest.mark.parametrize(
    "wrong", [{"rate_per_s": -1}, {"rate_per_s": 0}, {"tasks": 0}, {"driver": "uamqp"}]
)
def test_a_hosted_syphon_that_cannot_run_is_refused_when_it_is_described(
    wrong: dict[str, object],
) -> None:
    """P2: values outside raise at construction, not when the first message waits."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        SyphonHosting(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["old.example", (1,), ("",), None])
def test_accepted_owners_are_a_tuple_of_texts(given: object) -> None:
    """P21: one text would be taken for an owner of each of its letters."""
    with pytest.raises(ConfigurationError, match="accept_owners"):
        options(accept_owners=given)
