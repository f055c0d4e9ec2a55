"""Pairs over namespaces in memory, and over a broker in this process."""

from __future__ import annotations

from tests.support.pairing.pairs import fake_pair, open_fake_pair, open_pair

__all__ = ["fake_pair", "open_fake_pair", "open_pair"]
