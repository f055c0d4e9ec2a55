"""Copies of a topic's messages that several subscriptions hold: packed once, for all of them.

    topic --place()--> draft sheet --packed()--> one blob that all chunks select from

Rule 1: a draft belongs to one transaction; nothing is added once somebody has packed it.
Rule 2: a draft is never larger than a chunk, so that what a subscription selects fits into one.
Rule 3: a chunk whose messages do not lie on one sheet in order holds its own bytes: right in any
        case, only larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from twinbus.broker.entities.batch import CHUNK_BYTES_MAX, CHUNK_COUNT_MAX
from twinbus.broker.entities.record import IncomingMessage, pack_chunk
from twinbus.broker.store.port import SharedBody, SharedBodySelection


class SharedBodyDraft:
    """A sheet that is being filled."""

    __slots__ = ("_records", "_sheet", "_size")

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._size = 0
        self._sheet: SharedBody | None = None

    def has_room_for(self, record: bytes) -> bool:
        if self._sheet is not None or len(self._records) == CHUNK_COUNT_MAX:
            return False
        return not self._records or self._size + len(record) <= CHUNK_BYTES_MAX

    def place(self, record: bytes) -> int:
        """Put a message on the sheet; its place."""
        self._records.append(record)
        self._size += len(record)
        return len(self._records) - 1

    def sheet(self) -> SharedBody:
        """All of it; from now on nothing can be added."""
        if self._sheet is None:
            self._sheet = SharedBody(len(self._records), pack_chunk(self._records))
        return self._sheet


@dataclass(slots=True)
class SharedMessage(IncomingMessage):
    """A copy that lies on a sheet."""

    draft: SharedBodyDraft | None = None
    place: int = 0


class SharedBodyWriter:
    """Puts the copies of one transaction on sheets."""

    def __init__(self) -> None:
        self._draft = SharedBodyDraft()

    def place(self, message: IncomingMessage) -> SharedMessage:
        if not self._draft.has_room_for(message.record):
            self._draft = SharedBodyDraft()
        draft = self._draft
        place = draft.place(message.record)
        return SharedMessage(
            message.record,
            message.expires_ms,
            None,
            message.facts,
            message.trail,
            draft=draft,
            place=place,
        )


def group_by_shared_body(messages: list[IncomingMessage]) -> Iterator[list[IncomingMessage]]:
    """The messages, in order, in runs that lie on one sheet; without sheets, all together."""
    if type(messages[0]) is not SharedMessage:
        yield messages
        return
    for _draft, run in groupby(messages, key=_draft_of):
        yield list(run)


def _draft_of(message: IncomingMessage) -> SharedBodyDraft | None:
    return message.draft if type(message) is SharedMessage else None


def packed(messages: list[IncomingMessage]) -> tuple[bytes, SharedBodySelection | None]:
    """The blob of a chunk, and which sheet it could share."""
    share = _share_of(messages) if type(messages[0]) is SharedMessage else None
    if share is None or len(messages) < share.sheet.count:
        return pack_chunk([message.record for message in messages]), share
    return share.sheet.blob, share


def _share_of(messages: list[IncomingMessage]) -> SharedBodySelection | None:
    draft: SharedBodyDraft | None = None
    selection = 0
    for message in messages:
        if type(message) is not SharedMessage or message.draft is None:
            return None
        draft = draft or message.draft
        if message.draft is not draft or selection >> message.place:
            return None
        selection |= 1 << message.place
    return None if draft is None else SharedBodySelection(draft.sheet(), selection)
