"""Every kind of fault: what it does, which options it has, and their usual values.

This table is the whole list. The command line, the HTTP side, the documentation and the checks
in fault.py read it; a test holds it and docs/BROKER.md together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# The longest that a dependency's trouble hides a message (rule F3).
DELAY_S_MAX: Final = 900.0
_DAY_S: Final = 86_400.0

# What every kind has.
COMMON_OPTIONS: Final[Mapping[str, Any]] = {
    "id": None,
    "seed": None,
    "starts_after_s": None,
    "lasts_s": None,
}

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "seed": (0, float(2**63 - 1)),
    "probability": (0, 1),
    "starts_after_s": (0, 7 * _DAY_S),
    "lasts_s": (0, 7 * _DAY_S),
    "http_status": (400, 599),
    "latency_ms": (0, 600_000),
    "jitter_ms": (0, 600_000),
    "bytes_per_s": (1, 1e9),
    # One a day at the slowest, and no more than a board can carry out.
    "rate_per_s": (1 / _DAY_S, 1e6),
    "delay_s": (0, DELAY_S_MAX),
    "jitter_s": (0, DELAY_S_MAX),
    "applied_probability": (0, 1),
    "down_s": (0, _DAY_S),
    "slow_s": (0, _DAY_S),
}
WHOLE_NUMBERS: Final = frozenset({"seed", "http_status"})


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault. A tuple of texts is a choice, with the usual one in front."""

    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_namespace_wide: bool = False
    needs_subsystem: bool = False
    is_moment: bool = False
    """It happens once, when it begins, unless it has a rate."""


_ERROR = {"condition": "amqp:internal-error", "probability": 1.0}

KINDS: Final[Mapping[str, FaultKind]] = {
    "cannot-send": FaultKind(
        "Sends fail: with an error, without an answer, or by losing their link.",
        {"how": ("error", "timeout", "detach"), "applied_probability": 0.0, **_ERROR},
    ),
    "cannot-receive": FaultKind(
        "Nothing can be received: an error, nothing at all, or the link is lost.",
        {"how": ("error", "timeout", "detach"), **_ERROR},
    ),
    "cannot-manage": FaultKind(
        "Administration fails: with an HTTP error, or without an answer.",
        {"how": ("error", "timeout"), "http_status": 500, "probability": 1.0},
    ),
    "cannot-contact": FaultKind(
        "The namespace cannot be reached over the network.",
        {
            "how": ("refuse", "black-hole", "reset", "slow", "half-open", "gateway-error"),
            "plane": ("both", "data", "management"),
            "only_clients": None,
            "direction": ("to-client", "from-client"),
            "latency_ms": 200.0,
            "jitter_ms": 0.0,
            "bytes_per_s": None,
        },
        is_namespace_wide=True,
    ),
    "throttle": FaultKind(
        "Sends are refused with ServerBusy before anything is stored: all, or above a rate.",
        {"rate_per_s": None, "probability": 1.0},
    ),
    "delayed-visibility": FaultKind(
        "Sends are acknowledged at once and their messages appear later.",
        {"delay_s": DELAY_S_MAX, "jitter_s": 0.0, "probability": 1.0},
    ),
    "crash-subsystem": FaultKind(
        "A subsystem goes down with its locks, comes back, and is slow for a while.",
        {
            "applied_probability": 0.5,
            "down_s": 10.0,
            "slow_s": 10.0,
            "latency_ms": 200.0,
            "links": ("detach", "hang"),
        },
        needs_subsystem=True,
    ),
    "lost-disposition": FaultKind(
        "A settlement is applied or not, and its answer never comes.",
        {"how": ("timeout", "reset"), "applied_probability": 0.5, "probability": 1.0},
    ),
    "detach": FaultKind(
        "Links are detached by force, once or at a rate.",
        {"rate_per_s": None, "probability": 1.0, "condition": "amqp:link:detach-forced"},
        is_moment=True,
    ),
    "lock-loss": FaultKind("Every message and session lock is lost at once.", {}, is_moment=True),
    "disk-full": FaultKind(
        "The disk has no room: what is sent or settled is refused.",
        {"probability": 1.0},
        is_namespace_wide=True,
    ),
    "slow-disk": FaultKind(
        "Every commit takes longer.",
        {"latency_ms": 200.0, "jitter_ms": 0.0},
        is_namespace_wide=True,
    ),
}
