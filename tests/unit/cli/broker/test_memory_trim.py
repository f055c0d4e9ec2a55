"""Free memory goes back to the machine, when there is any."""

from __future__ import annotations

import sys

import pytest

from twinbus.cli.broker import memory_trim
from twinbus.cli.broker.memory_trim import Heap

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps so much")


MB = 1 << 20


def test_a_burst_is_trimmed_while_it_grows_and_again_when_its_connections_are_gone() -> None:
    """M13: what a burst allocated is given back."""
    heap = Heap(40 * MB)
    assert not heap.wants_trim(44 * MB, 1)
    assert heap.wants_trim(90 * MB, 200)
    heap.was_trimmed(90 * MB)
    assert not heap.wants_trim(92 * MB, 200)
    assert heap.wants_trim(92 * MB, 1)
    heap.was_trimmed(60 * MB)
    assert heap.wants_trim(60 * MB, 1)
    heap.was_trimmed(46 * MB)
    assert not heap.wants_trim(46 * MB, 1)


def test_what_stays_in_use_is_not_tried_again_and_again() -> None:
    heap = Heap(40 * MB)
    assert heap.wants_trim(500 * MB, 1)
    heap.was_trimmed(499 * MB)
    assert not heap.wants_trim(500 * MB, 1)
    assert not heap.wants_trim(500 * MB, 2)


def test_a_heap_full_of_holes_becomes_small_again() -> None:
    """M13: what a burst allocated is given back."""
    before = memory_trim.anonymous_bytes()
    blocks = [bytes(100_000) for _ in range(1_000)]
    kept = blocks[::20]
    blocks.clear()
    trim = memory_trim._trimmer()
    assert trim is not None
    trim(0)
    assert memory_trim.anonymous_bytes() - before < 30 << 20
    assert len(kept) == 50
