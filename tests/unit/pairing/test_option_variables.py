"""The options of a pair in environment variables."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

import twinbus
from tests.support.pairing.fake_namespace import FakeNamespace
from twinbus.aio import MessagingFactory, SendAvailabilityPairedNamespaceOptions, SyphonHosting
from twinbus.azure import Pairing
from twinbus.encoding.envelope.fields import TtlPolicy
from twinbus.errors import ConfigurationError
from twinbus.pairing.option_variables import PAIR_OPTIONS, variable_of

SECONDARY = "Endpoint=sb://spare.example;SharedAccessKeyName=root;SharedAccessKey=a2V5"
FACTORY = MessagingFactory.from_driver(FakeNamespace())
SAID = {
    "TWINBUS_PAIR_BACKLOG_QUEUE_COUNT": "3",
    "TWINBUS_PAIR_FAILOVER_INTERVAL": "2m",
    "TWINBUS_PAIR_PING_PRIMARY_INTERVAL": "15",
    "TWINBUS_PAIR_PING_MODE": "attach",
    "TWINBUS_PAIR_NAMESPACE_NAME": "shop",
    "TWINBUS_PAIR_ENABLE_SYPHON": "yes",
    "TWINBUS_PAIR_SYPHON": "local",
    "TWINBUS_PAIR_JOURNAL": "/var/log/pair",
    "TWINBUS_PAIR_CONTROL": "/etc/pair",
    "TWINBUS_PAIR_ALLOW_LOSSY_BACKLOG": "1",
    "TWINBUS_PAIR_REQUIRE_SECONDARY": "True",
    "TWINBUS_PAIR_ALLOWED_DESTINATIONS": "orders*, bills",
    "TWINBUS_PAIR_ACCEPT_OWNERS": "old.example",
    "TWINBUS_PAIR_TTL_POLICY": "elapsed",
}
UNDERSTOOD = {
    "backlog_queue_count": 3,
    "failover_interval": timedelta(minutes=2),
    "ping_primary_interval": timedelta(seconds=15),
    "ping_mode": "attach",
    "namespace_name": "shop",
    "enable_syphon": True,
    "syphon": SyphonHosting("local"),
    "journal": "/var/log/pair",
    "control": "/etc/pair",
    "allow_lossy_backlog": True,
    "require_secondary": True,
    "allowed_destinations": ("orders*", "bills"),
    "accept_owners": ("old.example",),
    "ttl_policy": TtlPolicy.ELAPSED,
}
# Objects of a program, and the secondary itself.
NOT_TEXTS = {
    "secondary_namespace_manager",
    "messaging_factory",
    "classifier",
    "rotation",
    "thresholds",
    "on_event",
}


def test_the_drop_in_takes_its_options_from_the_environment() -> None:
    """P2, P26: one changed line and no other, whatever is wanted of the pair."""
    own = {
        "TWINBUS_PAIR_SECONDARY_DRIVER": "amqp",
        "TWINBUS_PAIR_METERING": "/var/lib/books",
        "TWINBUS_PAIR_AUDIT": "on",
        "TWINBUS_PAIR_KEEP_DAYS": "30",
        "TWINBUS_PAIR_OPERATION_TIMEOUT": "90s",
    }
    where = {"SERVICEBUS_SECONDARY_CONNECTION_STRING": SECONDARY}
    pairing = Pairing.from_environment({**where, **SAID, **own})
    options = pairing.options()
    assert {name: getattr(options, name) for name in UNDERSTOOD} == UNDERSTOOD
    assert pairing.secondary_driver == "amqp" and pairing.audit is True
    assert (pairing.metering, pairing.keep_days) == ("/var/lib/books", 30)
    assert pairing.operation_timeout == 90.0


def test_pair_namespace_takes_them_too_and_keeps_its_own_defaults() -> None:
    """P2, P26: the minute of pair_namespace stays where nothing else is said."""
    kind = SendAvailabilityPairedNamespaceOptions
    options = kind.from_environment(None, FACTORY, SAID, ping_mode="message")
    expected = {**UNDERSTOOD, "ping_mode": "message"}
    assert {name: getattr(options, name) for name in UNDERSTOOD} == expected
    assert kind.from_environment(None, FACTORY, {}).failover_interval == timedelta(minutes=1)
    kept = kind.from_environment(None, FACTORY, {"TWINBUS_PAIR_JOURNAL_KEEP_DAYS": "7"})
    assert kept.journal_keep_days == 7


def test_a_program_without_a_loop_reads_the_same_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P2: from the environment of the process, unless another one is given."""
    monkeypatch.setenv("TWINBUS_PAIR_FAILOVER_INTERVAL", "0")
    factory = twinbus.MessagingFactory.from_driver(FakeNamespace())
    options = twinbus.SendAvailabilityPairedNamespaceOptions.from_environment(None, factory)
    assert options.failover_interval == timedelta(0)


def test_every_option_that_is_a_text_has_a_variable() -> None:
    known = {each.name for each in fields(SendAvailabilityPairedNamespaceOptions)}
    known |= {each.name for each in fields(Pairing) if "secondary" not in each.name}
    assert known - NOT_TEXTS == set(PAIR_OPTIONS) - {"secondary_driver"} | {"require_secondary"}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("failover_interval", "soon", "'soon'"),
        ("backlog_queue_count", "ten", "a whole number"),
        ("backlog_queue_count", "-1", "a whole number"),
        ("require_secondary", "maybe", "yes or no"),
        ("syphon", "flink", "spark or local"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_variables_name(
    name: str, text: str, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)) as caught:
        SendAvailabilityPairedNamespaceOptions.from_environment(
            None, FACTORY, {variable_of(name): text}
        )
    assert variable_of(name) in str(caught.value)


def test_an_empty_variable_is_not_set() -> None:
    made = SendAvailabilityPairedNamespaceOptions.from_environment(
        None, FACTORY, {"TWINBUS_PAIR_FAILOVER_INTERVAL": " "}
    )
    assert made.failover_interval == timedelta(minutes=1)


def test_the_guide_names_every_variable() -> None:
    guide = Path("docs/PAIRING.md").read_text()
    assert all(f"`{variable_of(name)}`" in guide for name in PAIR_OPTIONS)
