"""Mistakes in what one input may cost: a peer chooses how long the loop is held (rule M13)."""

from __future__ import annotations

import pytest

from twinbus.amqp import performatives
from twinbus.amqp.codec import primitives
from twinbus.amqp.message import sections


def count_no_keys(patch: pytest.MonkeyPatch) -> None:
    """Map keys of every type are free, also those whose hashes a peer can choose."""
    patch.setattr(primitives, "charge_key", lambda _cost, _budget: None)


def let_performatives_grow(patch: pytest.MonkeyPatch) -> None:
    """A performative may have as many elements as a message."""
    patch.setattr(performatives, "PERFORMATIVE_COUNT_MAX", 1 << 30)


def check_bodies_in_one_piece(patch: pytest.MonkeyPatch) -> None:
    """No body is large enough to be checked in steps."""
    patch.setattr(sections, "STEP_BYTES", 1 << 30)
