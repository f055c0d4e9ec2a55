"""The worst inputs of a peer, and how long they hold the decoder (rule M13).

Rule 1: what is measured is CPU time, and what is allowed is ten times what the code takes, so that
        a busy machine complains about nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.support.amqp.worst_inputs import (
    a_list,
    a_map,
    attach_with,
    described,
    symbol_map,
    uuid_keys,
    walking_keys,
)
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.sections import body_steps, scan_message
from twinbus.amqp.performatives import decode_performative

HELD_S_MAX = 0.05


@dataclass(frozen=True, slots=True)
class Costly:
    """One round reads a few inputs of random size; most of them have to be refused."""

    name: str = "costly inputs"
    unit: str = "rounds"
    rounds_max: int = 20
    has_processes: bool = False

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        """The complaints of one round after the other."""
        random = Random(18)
        for _ in range(self.rounds_max):
            count = random.randrange(2_000, 4_000)
            yield [*_of_keys(count), *_of_frames(count), *_of_bodies(4 * count)]


def _of_keys(count: int) -> Iterator[str]:
    for kind, keys in (("uuids", uuid_keys(count)), ("numbers", walking_keys(2_720))):
        buf = a_map(keys)
        held_s = _held_s(decode_value, buf)
        if held_s > HELD_S_MAX:
            yield f"keys that collide held the loop: {count} {kind}, {held_s * 1000:.0f} ms"


def _of_frames(count: int) -> Iterator[str]:
    buf = attach_with(properties=symbol_map(a_list([b"\x40"] * count)))
    try:
        decode_performative(buf, 0, len(buf), Budget())
    except DecodeError:
        return
    yield f"a frame of {count} elements was built"


def _of_bodies(count: int) -> Iterator[str]:
    buf = described(0x77, a_list([b"\xa1\x01a"] * count))
    sections = scan_message(buf, 0, len(buf), check_body=False)
    step_count = sum(1 for _ in body_steps(buf, sections))
    if step_count < 2:
        yield f"a body of {len(buf)} bytes was checked in one piece"


def _held_s(read: Callable[..., Any], buf: bytes) -> float:
    began = time.thread_time()
    with suppress(DecodeError):
        read(buf, 0, len(buf), Budget())
    return time.thread_time() - began
