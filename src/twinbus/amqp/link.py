"""One link: deliveries in one direction, with credit.

Rule 1: credit is absolute. The receiver states ``delivery-count + link-credit``; the sender
        subtracts what it has sent since, so messages that cross a flow are counted once.
Rule 2: a peer may overshoot (the Azure SDK assumes 10,000 credits before the first flow), so
        incoming credit is advice; what bounds memory is the caller's count of unsettled
        deliveries and the size limit here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.limits import UINT_MAX
from twinbus.amqp.performatives import Attach, Detach, Error, Flow, Source, Target, Transfer
from twinbus.amqp.transfers import encode_transfer

if TYPE_CHECKING:
    from twinbus.amqp.session import Session

_Terminus = TypeVar("_Terminus", Source, Target)

ROLE_SENDER = False
ROLE_RECEIVER = True

# Serial numbers wrap at 32 bits (AMQP 1.0 section 2.8.10).


def serial_is_after(later: int, earlier: int) -> bool:
    """Whether one 32-bit serial number comes after another (RFC 1982)."""
    return 0 < ((later - earlier) & UINT_MAX) < 0x80000000


class Link:
    """What both directions share."""

    def __init__(self, session: Session, handle: int, name: str) -> None:
        self.session = session
        self.handle = handle
        """Server role: the number that both sides use. Client role: our own number."""
        self.name = name
        self.remote: Attach | None = None
        self.is_attached = False
        self.is_detached = False
        self.owner: Any = None
        """An object of the engine's user."""

    role = ROLE_SENDER

    def forget_partial(self) -> None:
        """Discard a delivery that has begun and not ended."""

    @property
    def peer(self) -> Attach:
        """The attach frame the peer sent."""
        if self.remote is None:
            raise RuntimeError(f"The peer has not responded to the attach of link {self.name!r}.")
        return self.remote

    def forget_details(self) -> None:
        """The attach was handled: keep the name, the handle and the addresses of the link only.

        A peer may fill a frame with filters and properties for each of a thousand links.
        """
        peer = self.peer
        self.remote = Attach(
            name=peer.name,
            handle=peer.handle,
            role=peer.role,
            snd_settle_mode=peer.snd_settle_mode,
            rcv_settle_mode=peer.rcv_settle_mode,
            source=None if peer.source is None else _plain(peer.source),
            target=_plain(peer.target) if isinstance(peer.target, Target) else None,
        )

    def accept(
        self,
        *,
        source: Any,
        target: Any,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
    ) -> None:
        """Respond to the peer's attach, unless the link was detached again."""
        if self.is_detached:
            return
        peer = self.peer
        self._send_attach(
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role,
                snd_settle_mode=peer.snd_settle_mode
                if snd_settle_mode is None
                else snd_settle_mode,
                rcv_settle_mode=peer.rcv_settle_mode
                if rcv_settle_mode is None
                else rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=0 if self.role is ROLE_SENDER else None,
                max_message_size=max_message_size,
                properties=properties,
            )
        )

    def refuse(self, error: AmqpError) -> None:
        """Respond to the peer's attach without a terminus, then detach: the standard refusal.

        The Azure SDK reads the exact condition only from this form.
        """
        if self.is_detached:
            return
        peer = self.peer
        self._send_attach(
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role,
                snd_settle_mode=peer.snd_settle_mode,
                rcv_settle_mode=peer.rcv_settle_mode,
                source=peer.source if self.role is ROLE_RECEIVER else None,
                target=peer.target if self.role is ROLE_SENDER else None,
                initial_delivery_count=0 if self.role is ROLE_SENDER else None,
            )
        )
        self.detach(error)

    def _send_attach(self, attach: Attach) -> None:
        self.is_attached = True
        self.session.send(attach)

    def detach(self, error: AmqpError | None = None) -> None:
        """Close the link from our side; frames that still arrive for it are ignored."""
        if self.is_detached:
            return
        self.is_detached = True
        self.session.forget_detached(self)
        self.session.send(
            Detach(
                handle=self.handle, closed=True, error=None if error is None else wire_error(error)
            )
        )


def _plain(terminus: _Terminus) -> _Terminus:
    """A terminus without its maps and lists."""
    kept = replace(terminus, dynamic_node_properties=None, capabilities=None)
    if isinstance(kept, Source):
        kept.filter = kept.default_outcome = kept.outcomes = None
    return kept


def wire_error(error: AmqpError) -> Error:
    return Error(error.condition, error.description, error.info)


class ReceiverLink(Link):
    """The peer sends, we receive."""

    role = ROLE_RECEIVER

    def __init__(self, session: Session, handle: int, name: str) -> None:
        super().__init__(session, handle, name)
        self.delivery_count = 0
        self.credit = 0
        self.credit_target = 0
        self.message_size_bytes_max = session.connection.limits.batch_size_bytes_max
        self.last_delivery_id: int | None = None
        self.keeps_tags = False
        """Whether runs of deliveries come with their tags."""
        self.is_draining = False
        self._partial = bytearray()
        self._first: Transfer | None = None

    def grant(self, credit: int) -> None:
        """Let the peer send up to ``credit`` more; replenish() renews this credit."""
        self.credit_target = credit
        self.credit = credit
        self.session.send_flow(self)

    def drain(self) -> None:
        """Request the available messages and the remaining credit; see LinkDrained."""
        self.credit_target = 0
        self.is_draining = True
        self.session.send_flow(self, drain=True)

    def on_drained(self, flow: Flow) -> bool:
        """Handle the peer's response to a drain; False when the flow is not one."""
        if not self.is_draining or not flow.drain or flow.link_credit:
            return False
        self.is_draining = False
        self.credit = 0
        if flow.delivery_count is not None:
            self.delivery_count = flow.delivery_count
        return True

    def replenish(self) -> None:
        """Renew the credit when half of it is used."""
        if self.credit * 2 <= self.credit_target and not self.is_detached:
            self.grant(self.credit_target)

    def receive(self, transfer: Transfer, payload: bytes) -> tuple[Transfer, bytes] | None:
        """Take one transfer frame; the first frame and the whole payload once complete."""
        first = self._first
        if first is None:
            if transfer.delivery_id is None or transfer.delivery_tag is None:
                raise AmqpError(
                    Condition.INVALID_FIELD,
                    "The first transfer of a delivery lacks its delivery-id or delivery-tag.",
                )
            if len(transfer.delivery_tag) > self.session.connection.limits.delivery_tag_bytes_max:
                raise AmqpError(
                    Condition.INVALID_FIELD, "A delivery-tag may have at most 32 bytes."
                )
            if not transfer.more and not transfer.aborted:
                self._check_size(len(payload))
                self._count_delivery()
                return transfer, payload
            self._first = first = transfer
        elif transfer.delivery_id is not None and transfer.delivery_id != first.delivery_id:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                "A delivery began before the previous delivery on this link was finished.",
            )
        return self._receive_part(first, transfer, payload)

    def _receive_part(
        self, first: Transfer, transfer: Transfer, payload: bytes
    ) -> tuple[Transfer, bytes] | None:
        if transfer.aborted:
            self.forget_partial()
            self._count_delivery()
            return None
        self._check_size(len(self._partial) + len(payload))
        self.session.connection.keep_partial(len(payload))
        self._partial += payload
        if transfer.more:
            return None
        whole = bytes(self._partial)
        first.settled = bool(first.settled or transfer.settled)
        self.forget_partial()
        self._count_delivery()
        return first, whole

    def _check_size(self, size: int) -> None:
        if size > self.message_size_bytes_max:
            raise AmqpError(
                Condition.LINK_MESSAGE_SIZE_EXCEEDED,
                f"A delivery on this link may have at most {self.message_size_bytes_max} bytes. "
                "Send smaller messages or smaller batches.",
            )

    def _count_delivery(self) -> None:
        self.delivery_count = (self.delivery_count + 1) & UINT_MAX
        self.credit -= 1

    def forget_partial(self) -> None:
        self.session.connection.drop_partial(len(self._partial))
        self._partial = bytearray()
        self._first = None

    def count_run(self, first_id: int, count: int) -> None:
        """``count`` deliveries arrived with consecutive ids."""
        self.delivery_count = (self.delivery_count + count) & UINT_MAX
        self.credit -= count
        self.last_delivery_id = (first_id + count - 1) & UINT_MAX

    @property
    def next_run_id(self) -> int | None:
        """The delivery id that would continue a run; None in the middle of a delivery."""
        if self._first is not None or self.last_delivery_id is None or self.is_detached:
            return None
        return (self.last_delivery_id + 1) & UINT_MAX

    def is_repeat(self, delivery_id: int) -> bool:
        """Whether this link has had that delivery id; stores it if not."""
        last = self.last_delivery_id
        if last is not None and not serial_is_after(delivery_id, last):
            return True
        self.last_delivery_id = delivery_id
        return False


class SenderLink(Link):
    """We send, the peer receives."""

    role = ROLE_SENDER

    def __init__(self, session: Session, handle: int, name: str) -> None:
        super().__init__(session, handle, name)
        self.delivery_count = 0
        self.credit = 0
        self.is_draining = False

    def on_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            start = 0 if flow.delivery_count is None else flow.delivery_count
            behind = (self.delivery_count - start) & UINT_MAX
            if behind >= 0x80000000:
                raise AmqpError(
                    Condition.INVALID_FIELD, "The flow counts deliveries that were not sent."
                )
            self.credit = max(0, flow.link_credit - behind)
        self.is_draining = bool(flow.drain)

    def reserve(self, count: int) -> int:
        """Take credit for ``count`` deliveries; the first of their consecutive delivery ids."""
        self.delivery_count = (self.delivery_count + count) & UINT_MAX
        self.credit -= count
        return self.session.reserve_delivery_ids(count)

    def complete_drain(self) -> None:
        """No more messages are available: return the remaining credit."""
        self.delivery_count = (self.delivery_count + self.credit) & UINT_MAX
        self.credit = 0
        self.is_draining = False
        self.session.send_flow(self, drain=True)

    def send(self, payload: bytes, tag: bytes, *, settled: bool, message_format: int = 0) -> int:
        """Send one delivery in as many frames as it takes; its delivery id."""
        delivery_id = self.reserve(1)
        self.send_as(delivery_id, payload, tag, settled=settled, message_format=message_format)
        return delivery_id

    def send_as(
        self,
        delivery_id: int,
        payload: bytes,
        tag: bytes,
        *,
        settled: bool,
        message_format: int = 0,
    ) -> None:
        """Send one delivery under an id that was reserved before."""
        session = self.session
        room = session.payload_bytes_max
        position = 0
        while True:
            part = payload[position : position + room]
            position += room
            more = position < len(payload)
            head = encode_transfer(self.handle, delivery_id, tag, message_format, settled, more)
            session.write_transfers([encode_frame(session.channel, head, part)])
            if not more:
                return
