"""The drop-in takes every option of a pair."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from twinbus.aio import (
    BacklogThresholds,
    Classifier,
    RotationPolicy,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
    TtlPolicy,
)
from twinbus.azure import Pairing
from twinbus.failover.error_classifier import PrimaryErrorClass

SECONDARY = "Endpoint=sb://spare.example;SharedAccessKeyName=root;SharedAccessKey=a2V5"
# Said in other words: the secondary itself, and keep_days, which is for all files of the pair.
OTHER_WORDS = {"secondary_namespace_manager", "messaging_factory", "journal_keep_days"}


def test_every_option_is_handed_on() -> None:
    """P1 and P2: what a factory's pair can be told, a drop-in's can be told, too."""
    told: dict[str, Any] = {
        "backlog_queue_count": 3,
        "failover_interval": timedelta(seconds=7),
        "enable_syphon": True,
        "ping_primary_interval": timedelta(seconds=9),
        "ping_mode": "attach",
        "namespace_name": "shop",
        "classifier": Classifier().with_primary({KeyError: PrimaryErrorClass.OUTAGE}),
        "rotation": RotationPolicy(pause_s=3.0),
        "journal": Path("journal"),
        "control": Path("control"),
        "thresholds": BacklogThresholds(unattended_s=60.0),
        "on_event": print,
        "allow_lossy_backlog": True,
        "require_secondary": True,
        "allowed_destinations": ("orders",),
        "accept_owners": ("old.example",),
        "ttl_policy": TtlPolicy.ELAPSED,
        "syphon": SyphonHosting("local"),
    }
    options = Pairing(secondary=SECONDARY, keep_days=30, **told).options()
    assert options.journal_keep_days == 30
    assert {name: getattr(options, name) for name in told} == told
    known = {each.name for each in fields(SendAvailabilityPairedNamespaceOptions)}
    assert known - OTHER_WORDS == set(told)


def test_the_drop_in_diverts_with_the_first_failure_unless_told() -> None:
    """P26: an application that changed one line sees no errors of an outage; P2's minute stays
    with pair_namespace."""
    told = Pairing(secondary=SECONDARY).options()
    assert told.failover_interval == timedelta()
    environment = {"SERVICEBUS_SECONDARY_CONNECTION_STRING": SECONDARY}
    assert Pairing.from_environment(environment).options().failover_interval == timedelta()
    own = SendAvailabilityPairedNamespaceOptions(
        told.secondary_namespace_manager, told.messaging_factory
    )
    assert own.failover_interval == timedelta(minutes=1)
