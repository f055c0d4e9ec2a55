"""What a queue machine asks its surroundings to read for it.

The machine never touches the store. It leaves requests; whoever runs it reads and answers by
calling the method named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.lane import DeliveryStream
from twinbus.broker.store.port import ScheduledRow


@dataclass(frozen=True, slots=True)
class LoadNext:
    """Read the chunks of a lane behind ``after_seq``; answer with ``chunks_loaded``.

    A lane with a session is only interested in the chunks of that session.
    """

    stream: DeliveryStream
    after_seq: int
    through_seq: int


@dataclass(frozen=True, slots=True)
class LoadBlob:
    """Read one chunk again; answer with ``blob_loaded``."""

    chunk: Chunk


@dataclass(frozen=True, slots=True)
class LoadExpired:
    """Read chunks with messages that expired; answer with ``expired_loaded``."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class LoadDue:
    """Read scheduled messages whose time has come; answer with ``due_loaded``."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class FindTimes:
    """Look up the next expiry and the next schedule; answer with ``times_found``."""


class ScheduledSize(NamedTuple):
    """What must be known of a scheduled message to remove it; its bytes may be a megabyte."""

    seq: int
    byte_count: int


def size_of(row: ScheduledRow) -> ScheduledSize:
    return ScheduledSize(row.seq, len(row.blob))


Request = LoadNext | LoadBlob | LoadExpired | LoadDue | FindTimes
