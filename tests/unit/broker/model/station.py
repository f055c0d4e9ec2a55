"""A client of one entity: every operation that a model knows, as one call with an answer.

The links of a station live as long as its connection. After a restart of the broker a new
station takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.unit.broker.model.rig import Rig
from twinbus.amqp.codec.types import Array, Int, Long, Symbol, Timestamp, UInt
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Header, Properties
from twinbus.amqp.performatives import Accepted, Error, Modified, Rejected, Released, Source

DEAD = "/$deadletterqueue"
LONGS, UUIDS = 0x81, 0x98

COMPLETE, ABANDON, DEFER, DEAD_LETTER, RELEASE = (
    "complete",
    "abandon",
    "defer",
    "dead-letter",
    "release",
)
STATES: dict[str, Any] = {
    COMPLETE: Accepted(),
    ABANDON: Modified(True, False),
    DEFER: Modified(True, True),
    DEAD_LETTER: Rejected(Error(Symbol("com.microsoft:dead-letter"), "because", None)),
    RELEASE: Released(),
}
STATUSES = {
    COMPLETE: "completed",
    ABANDON: "abandoned",
    DEFER: "defered",
    DEAD_LETTER: "suspended",
}


@dataclass(frozen=True)
class Got:
    """A message as a client sees it."""

    label: str
    seq: int
    delivery_count: int
    token: UUID | None = None
    delivery_id: int | None = None
    reason: str | None = None
    """Why it was dead-lettered."""


def encoded(
    label: str,
    *,
    ttl_ms: int | None = None,
    due_ms: int | None = None,
    session: str | None = None,
    message_id: str | None = None,
    properties: dict[str, Any] | None = None,
) -> bytes:
    """A message whose body is its label."""
    annotations: dict[Symbol, Any] | None = None
    if due_ms is not None:
        annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due_ms)}
    return Message(
        header=None if ttl_ms is None else Header(ttl_ms=ttl_ms),
        message_annotations=annotations,
        properties=Properties(message_id=message_id or label, group_id=session),
        application_properties=properties,
        body=label.encode(),
    ).encode()


Granted = tuple[str, ReceiverLink] | None
REFUSALS = ("com.microsoft:session-cannot-be-locked", "com.microsoft:timeout")
ALL_MS = 253_402_300_800_000


class Station:
    """One connection to the entities of a model."""

    def __init__(self, rig: Rig) -> None:
        self.client = rig.connect()
        self._senders: dict[str, SenderLink] = {}
        self._receivers: dict[tuple[str, bool], ReceiverLink] = {}

    # -- sending --------------------------------------------------------------------------

    def sender(self, path: str) -> SenderLink:
        if path not in self._senders:
            self._senders[path] = self.client.attach_sender(path)
        return self._senders[path]

    def send(self, path: str, payload: bytes) -> None:
        state = self.client.send(self.sender(path), payload)
        assert state == Accepted(), state

    def begin_send(self, path: str, payload: bytes) -> None:
        """Hand a message to the broker, which asks the disk for it and is not answered yet."""
        link = self.sender(path)
        link.send(payload, b"hasty", settled=False)
        self.client.push()
        while self.client._rig.loop.is_busy:
            self.client._rig.loop.turn()

    def schedule(self, path: str, payloads: list[bytes]) -> list[int]:
        """The sequence numbers under which the messages are scheduled."""
        entries = [{"message": payload} for payload in payloads]
        reply = self._manage(path, "schedule-message", {"messages": entries})
        return [int(seq) for seq in reply["sequence-numbers"].items]

    def cancel(self, path: str, seqs: list[int]) -> bool:
        body = {"sequence-numbers": Array.of(LONGS, [Long(seq) for seq in seqs])}
        return self._manage(path, "cancel-scheduled-message", body) is not None

    # -- receiving ------------------------------------------------------------------------

    def receiver(self, path: str, *, deletes: bool = False) -> ReceiverLink:
        key = (path, deletes)
        if key not in self._receivers:
            self._receivers[key] = self.client.attach_receiver(
                path, snd_settle_mode=1 if deletes else 0
            )
        return self._receivers[key]

    def accept(self, path: str, session: str | None, *, deletes: bool = False) -> Granted:
        """Take a session, or the next one with messages; its name and the link to receive on."""
        named = {Symbol("com.microsoft:session-filter"): session}
        link = self.client.attach_receiver(
            path,
            source=Source(address=path, filter=named),
            snd_settle_mode=1 if deletes else 0,
            properties={Symbol("com.microsoft:timeout"): UInt(0)},
        )
        source = link.peer.source
        if source is None:
            assert self.client.refusal(link) in REFUSALS
            return None
        (granted,) = (source.filter or {}).values()
        return granted, link

    def was_lost(self, link: ReceiverLink) -> bool:
        """Whether the broker has taken a session back."""
        self.client.pump()
        if link.is_detached:
            assert self.client.refusal(link) == "com.microsoft:session-lock-lost"
        return link.is_detached

    def let_go(self, link: ReceiverLink) -> None:
        link.detach()
        self.client.pump()

    def renew_session(self, path: str, session: str) -> int | None:
        reply = self._manage(path, "renew-session-lock", {"session-id": session})
        return None if reply is None else int(reply["expiration"])

    def note_state(self, path: str, session: str, state: bytes | None) -> bool:
        body = {"session-id": session, "session-state": state}
        return self._manage(path, "set-session-state", body) is not None

    def noted_state(self, path: str, session: str) -> bytes | None:
        state: bytes | None = self._manage(path, "get-session-state", {"session-id": session})[
            "session-state"
        ]
        return state

    def sessions(self, path: str) -> list[str]:
        """The sessions that have messages."""
        body = {"last-updated-time": Timestamp(ALL_MS), "skip": Int(0), "top": Int(100)}
        reply = self._manage(path, "get-message-sessions", body)
        return list(reply["sessions-ids"].items) if reply else []

    def close_receiver(self, path: str) -> None:
        """Detach; locks stay as they are."""
        link = self._receivers.pop((path, False), None)
        if link is not None:
            link.detach()
            self.client.pump()

    def receive(self, path: str, count: int, *, deletes: bool = False) -> list[Got]:
        """Up to ``count`` messages, those that are there now."""
        return self.receive_on(self.receiver(path, deletes=deletes), count)

    def receive_on(self, link: ReceiverLink, count: int) -> list[Got]:
        link.grant(count)
        self.client.pump()
        link.grant(0)
        self.client.pump()
        came = [
            event
            for event in self.client.events
            if isinstance(event, DeliveryReceived) and event.link is link
        ]
        for event in came:
            self.client.events.remove(event)
        return [_got(event.payload, event.delivery_id) for event in came]

    def settle(self, got: Got, outcome: str) -> bool:
        """Settle on the link; whether the lock was still there."""
        assert got.delivery_id is not None
        state = STATES[outcome]
        answer = self.client.settled(got.delivery_id, state)
        if isinstance(answer, Rejected) and answer.error is not None:
            assert str(answer.error.condition).endswith("-lock-lost"), answer
            return False
        assert type(answer) is type(state), answer
        return True

    def settle_by_token(self, path: str, got: Got, outcome: str, **more: Any) -> bool:
        """Settle through management, as from anywhere."""
        body = {"disposition-status": STATUSES[outcome], "lock-tokens": _tokens(got), **more}
        return self._manage(path, "update-disposition", body) is not None

    def renew(self, path: str, got: Got) -> int | None:
        """When the renewed lock ends, on the wall clock; None when it was lost."""
        reply = self._manage(path, "renew-lock", {"lock-tokens": _tokens(got)})
        return None if reply is None else int(reply["expirations"].items[0])

    # -- looking --------------------------------------------------------------------------

    def peek(self, path: str, first: int = 1, count: int = 250, **more: Any) -> list[Got]:
        body = {"from-sequence-number": Long(first), "message-count": count, **more}
        reply = self._manage(path, "peek-message", body)
        return [_got(each["message"]) for each in (reply or {}).get("messages", ())]

    def take(self, path: str, seq: int, *, deletes: bool = False, **more: Any) -> Got | None:
        """Receive a deferred message by its number; None when there is no such."""
        body = {
            "sequence-numbers": Array.of(LONGS, [Long(seq)]),
            "receiver-settle-mode": UInt(0 if deletes else 1),
            **more,
        }
        reply = self._manage(path, "receive-by-sequence-number", body)
        if reply is None:
            return None
        (found,) = reply["messages"]
        got = _got(found["message"])
        assert got.token == found.get("lock-token")
        return got

    def _manage(self, path: str, operation: str, body: dict[str, Any]) -> Any:
        """The body of a good answer; None when the broker says that it is not there."""
        reply = self.client.manage(path, f"com.microsoft:{operation}", body)
        told = reply.application_properties
        assert told is not None
        if told["statusCode"] in (404, 410):
            return None
        assert told["statusCode"] in (200, 202, 204), told
        return (reply.body.value if reply.body is not None else None) or {}  # type: ignore[union-attr]


def _tokens(got: Got) -> Array:
    return Array.of(UUIDS, [got.token])


def _got(payload: bytes, delivery_id: int | None = None) -> Got:
    message = Message.decode(payload)
    extra = {str(key): value for key, value in (message.delivery_annotations or {}).items()}
    annotations = {str(key): value for key, value in (message.message_annotations or {}).items()}
    properties = message.application_properties or {}
    assert isinstance(message.body, bytes)
    return Got(
        message.body.decode(),
        int(annotations["x-opt-sequence-number"]),
        int((message.header.delivery_count if message.header else 0) or 0),
        extra.get("x-opt-lock-token"),
        delivery_id,
        properties.get("DeadLetterReason"),
    )
