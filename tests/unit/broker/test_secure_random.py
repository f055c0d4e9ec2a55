"""Chance that nobody can guess."""

from __future__ import annotations

import os

import pytest

from twinbus.broker.secure_random import SecureRandom


def test_every_number_is_given_out_once_and_uses_all_its_bits() -> None:
    """M2: two runs of locks never have the same id."""
    chance = SecureRandom()
    numbers = [chance.getrandbits(64) for _ in range(5_000)]
    assert len(set(numbers)) == 5_000
    every, none = (1 << 64) - 1, 0
    for number in numbers:
        every &= number
        none |= number
    assert every == 0 and none == (1 << 64) - 1


def test_the_system_is_asked_once_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot path pays no system call for each run of locks."""
    asked: list[int] = []
    system = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or system(size))
    chance = SecureRandom()
    for _ in range(1_024):
        chance.getrandbits(64)
    assert asked == [4_096, 4_096]


def test_other_draws_come_from_the_system_too() -> None:
    chance = SecureRandom()
    assert len({chance.getrandbits(128) for _ in range(100)}) == 100
    assert all(0 <= chance.getrandbits(8) < 256 for _ in range(100))
    assert all(0.0 <= chance.random() < 1.0 for _ in range(100))
