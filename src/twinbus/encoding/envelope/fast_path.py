"""A fast path for plain messages: an id and a body only.

Nearly all messages of a backlog are plain, and differ only in numbers, ids and bodies. The bytes
before the properties are compared with one pattern and not parsed.

    header | lock token | number, times | properties: id, nulls | x-ms-path | body
    one pattern                         | consistent lengths

Rule 1: a result here equals the result of the general code; a test compares them.
Rule 2: None means that the general code decides.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Final

from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.message.sections import APPLICATION_PROPERTIES
from twinbus.encoding.envelope.fields import OWNER, PATH
from twinbus.encoding.splicing import map_section

# As our broker writes it: durable, priority 4, no ttl; then what only a broker sets. Everything
# has a fixed width, so that a match covers all bytes.
_FRONT: Final = re.compile(
    rb"\x00Sp\xc0\x0b\x05\x41\x50\x04\x40[\x41\x42]\x70.{4}"
    rb"(?:\x00Sq\xc1\x24\x02\xa3\x10x-opt-lock-token\x98.{16})?"
    rb"\x00Sr\xd1.{4}\x00\x00\x00(?:"
    rb"\x04\xa3\x15x-opt-sequence-number\x81.{8}\xa3\x13x-opt-enqueued-time\x83.{8}|"
    rb"\x06\xa3\x15x-opt-sequence-number\x81.{8}\xa3\x13x-opt-enqueued-time\x83.{8}"
    rb"\xa3\x12x-opt-locked-until\x83.{8})"
    rb"(?=\x00Ss[\xc0\xd0])",
    re.DOTALL,
)
# Nearly every first delivery: one variant of the pattern, compared in half of its time. Bytes that
# differ follow each part but the last.
_USUAL_PARTS: Final = (
    b"\x00Sp\xc0\x0b\x05\x41\x50\x04\x40\x41\x70",
    b"\x00Sq\xc1\x24\x02\xa3\x10x-opt-lock-token\x98",
    b"\x00Sr\xd1",
    b"\x00\x00\x00\x06\xa3\x15x-opt-sequence-number\x81",
    b"\xa3\x13x-opt-enqueued-time\x83",
    b"\xa3\x12x-opt-locked-until\x83",
    b"\x00Ss\xc0",
)
_USUAL: Final = struct.Struct(
    "".join(
        f"{len(part)}s{gap}x"
        for part, gap in zip(_USUAL_PARTS, (4, 16, 4, 8, 8, 8, 0), strict=True)
    )
)
_USUAL_BYTES: Final = _USUAL.size - len(_USUAL_PARTS[-1])
_PROPERTIES: Final = b"\x00\x53\x73\xc0"
_BODY_HEADS: Final = (b"\x00\x53\x75", b"\x00\x53\x77")
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74\xc1"
_A_PATH: Final = encode_value(PATH) + b"\xa1"
_PATH_SIZE_AT: Final = len(_APPLICATION_PROPERTIES) + 2 + len(_A_PATH)
_AN_OWNER: Final = encode_value(OWNER) + b"\xa1"
_ID_AT: Final = len(_PROPERTIES) + 4

# Destinations that one process sends to.
_PATHS_REMEMBERED_MAX: Final = 4_096
# Ids of some lengths, each followed by some nulls.
_HEADS_REMEMBERED_MAX: Final = 1_024


@lru_cache(_PATHS_REMEMBERED_MAX)
def _section(path: str, owner: str) -> bytes:
    pairs = [encode_value(PATH), encode_value(path)]
    if owner:
        pairs += (encode_value(OWNER), encode_value(owner))
    return map_section(APPLICATION_PROPERTIES, len(pairs) >> 1, b"".join(pairs))


def alias_plain(encoded: bytes, path: str, owner: str = "") -> bytes | None:
    """The copy of a message that is a short list of properties, all null but an id, and a body."""
    body_at = _after_id_alone(encoded, 0)
    if not body_at or not encoded.startswith(_BODY_HEADS, body_at):
        return None
    return b"".join((encoded[:body_at], _section(path, owner), encoded[body_at:]))


def simple_properties(encoded: bytes) -> bytes | None:
    """The properties of a message that begins with them, if they contain an id only."""
    stop = _after_id_alone(encoded, 0)
    return encoded[:stop] if stop else None


def bare_message_start(buf: bytes) -> int:
    """Where the properties begin, after what our broker writes before them; 0 for other brokers."""
    if len(buf) >= _USUAL.size and _USUAL.unpack_from(buf) == _USUAL_PARTS:
        return _USUAL_BYTES
    front = _FRONT.match(buf)
    return front.end() if front else 0


def restore_plain(buf: bytes, bare_at: int) -> tuple[str, bytes, None, str, str] | None:
    """(path, message, None, message id, owner) of a message with no other alias."""
    path_at = _after_id_alone(buf, bare_at)
    if not path_at or len(buf) < path_at + _PATH_SIZE_AT:
        return None
    body_at = path_at + 5 + buf[path_at + 4]
    found = _read_aliases(buf[path_at:body_at])
    if found is None or not buf.startswith(_BODY_HEADS, body_at):
        return None
    id_at = bare_at + _ID_AT
    message_id = buf[id_at : id_at + buf[id_at - 1]]
    if not message_id.isascii():
        return None
    path, owner = found
    return path, buf[bare_at:path_at] + buf[body_at:], None, message_id.decode(), owner


@lru_cache(_PATHS_REMEMBERED_MAX)
def _read_aliases(section: bytes) -> tuple[str, str] | None:
    """(path, owner) of application properties that contain a destination, optionally the mark of
    a pair, and nothing else."""
    count_at = len(_APPLICATION_PROPERTIES) + 1
    if len(section) <= _PATH_SIZE_AT or not (
        section.startswith(_APPLICATION_PROPERTIES) and section.startswith(_A_PATH, count_at + 1)
    ):
        return None
    start = _PATH_SIZE_AT + 1
    stop = start + section[start - 1]
    path, rest, owner = section[start:stop], section[stop:], b""
    if rest:
        owner = rest[len(_AN_OWNER) + 1 :]
        if not (
            owner
            and rest.startswith(_AN_OWNER)
            and rest[len(_AN_OWNER)] == len(owner)
            and owner.isascii()
        ):
            return None
    # A length beyond the end cuts off the path.
    if not path or len(path) != section[start - 1] or not path.isascii():
        return None
    if section[count_at] != (4 if rest else 2):
        return None
    return path.decode(), owner.decode()


def _after_id_alone(buf: bytes, pos: int) -> int:
    """Where properties end that contain a short text as the id and nulls only; otherwise 0."""
    size = _size_with_id_alone(buf[pos : pos + _ID_AT])
    return pos + size if 0 < size <= len(buf) - pos else 0


@lru_cache(_HEADS_REMEMBERED_MAX)
def _size_with_id_alone(head: bytes) -> int:
    """The size of the properties, by the bytes before the id, its length included.

    After the id there are as many bytes as fields, so that each is a null, or a zero of a field
    that is not used.
    """
    if len(head) < _ID_AT or not head.startswith(_PROPERTIES) or head[6] != 0xA1:
        return 0
    size, field_count, id_size = 5 + head[4], head[5], head[7]
    return size if size - _ID_AT - id_size == field_count - 1 else 0
