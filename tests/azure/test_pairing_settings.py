"""The drop-in takes every option of a pair."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from twinbus.aio import (
    Classifier,
    RotationPolicy,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
    Thresholds,
    TtlPolicy,
)
from twinbus.azure import Pairing
from twinbus.core.classifier import Verdict

SECONDARY = "Endpoint=sb://spare.example;SharedAccessKeyName=root;SharedAccessKey=a2V5"
# Said in other words: the secondary itself.
OTHER_WORDS = {"secondary_namespace_manager", "messaging_factory"}


def test_every_option_is_handed_on() -> None:
    """P1 and P2: what a factory's pair can be told, a drop-in's can be told, too."""
    told: dict[str, Any] = {
        "backlog_queue_count": 3,
        "failover_interval": timedelta(seconds=7),
        "enable_syphon": True,
        "ping_primary_interval": timedelta(seconds=9),
        "ping_mode": "attach",
        "namespace_name": "shop",
        "classifier": Classifier().with_primary({KeyError: Verdict.OUTAGE}),
        "rotation": RotationPolicy(pause_s=3.0),
        "journal": Path("journal"),
        "control": Path("control"),
        "thresholds": Thresholds(unattended_s=60.0),
        "on_event": print,
        "allowed_destinations": ("orders",),
        "ttl_policy": TtlPolicy.ELAPSED,
        "syphon": SyphonHosting("local"),
    }
    options = Pairing(secondary=SECONDARY, **told).options()
    assert {name: getattr(options, name) for name in told} == told
    known = {each.name for each in fields(SendAvailabilityPairedNamespaceOptions)}
    assert known - OTHER_WORDS == set(told)
