"""One session: the windows that limit transfers, and the links that share them.

    incoming: transfers that the peer may send before we open the window again
    outgoing: transfers that the peer allows; further ones wait in the outbox

Rule 1: an error that belongs to one link detaches that link; the session goes on.
Rule 2: an error in the session's own counting ends the session; the connection goes on.
Rule 3: frames for a link or session that we closed may still arrive: they are ignored, not
        errors (the Azure SDK detaches its management links after the end).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.events import (
    CreditChanged,
    DeliveriesReceived,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetachedEvent,
    LinkDrained,
    SessionEnded,
    WindowOpened,
)
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.limits import UINT_MAX
from twinbus.amqp.link import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Link,
    ReceiverLink,
    SenderLink,
    serial_is_after,
    wire_error,
)
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Performative,
    Transfer,
    encode_performative,
)

if TYPE_CHECKING:
    from twinbus.amqp.connection import Connection


# Frame header, transfer performative and its widest fields, rounded up.
TRANSFER_OVERHEAD_BYTES_MAX = 128

# This window never limits transfers: credit does.
OUTGOING_WINDOW = 65_536

AnyLink = SenderLink | ReceiverLink


class Session:
    """One session of a connection."""

    def __init__(self, connection: Connection, channel: int) -> None:
        self.connection = connection
        self.channel = channel
        self.is_ended = False
        self.links: dict[int, AnyLink] = {}
        """By the handle the peer uses."""
        self._names: dict[tuple[str, bool], AnyLink] = {}
        self._detached_handles: set[int] = set()
        self._next_incoming_id = 0
        self._incoming_left = connection.limits.incoming_window
        self._flow_at_id = 0
        """The next incoming id when the last flow was written."""
        self._is_update_scheduled = False
        self._next_outgoing_id = 0
        self._next_delivery_id = 0
        self._remote_window = 0
        self._remote_handle_max = UINT_MAX
        self._outbox: deque[bytes] = deque()
        self.owner: object = None

    # -- sending --------------------------------------------------------------------------

    def send(self, performative: Performative) -> None:
        if not self.is_ended:
            self.connection.write(encode_frame(self.channel, encode_performative(performative)))

    def write_transfers(self, frames: list[bytes]) -> None:
        """Send encoded transfer frames, in order, as far as the peer's window allows."""
        count = len(frames)
        if self._outbox or count > self._remote_window:
            self._outbox.extend(frames)
            self._drain_outbox()
            return
        self._remote_window -= count
        self._next_outgoing_id = (self._next_outgoing_id + count) & UINT_MAX
        self.connection.write_many(frames)

    def _drain_outbox(self) -> None:
        while self._outbox and self._remote_window:
            self._remote_window -= 1
            self._next_outgoing_id = (self._next_outgoing_id + 1) & UINT_MAX
            self.connection.write(self._outbox.popleft())

    @property
    def is_blocked(self) -> bool:
        """Transfers wait for the peer to open its window."""
        return bool(self._outbox) or not self._remote_window

    @property
    def payload_bytes_max(self) -> int:
        """How many bytes of a message fit into one frame."""
        return self.connection.remote_frame_size_bytes_max - TRANSFER_OVERHEAD_BYTES_MAX

    def reserve_delivery_ids(self, count: int) -> int:
        first = self._next_delivery_id
        self._next_delivery_id = (first + count) & UINT_MAX
        return first

    def send_flow(self, link: AnyLink | None = None, *, drain: bool = False) -> None:
        self._flow_at_id = self._next_incoming_id
        self._schedule_window_update()
        flow = Flow(
            next_incoming_id=self._next_incoming_id,
            incoming_window=self.connection.limits.incoming_window,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=OUTGOING_WINDOW,
        )
        if link is not None:
            flow.handle = link.handle
            flow.delivery_count = link.delivery_count
            flow.link_credit = link.credit
            flow.drain = drain
        self.send(flow)

    def _schedule_window_update(self) -> None:
        if not self._is_update_scheduled:
            self._is_update_scheduled = True
            self.connection.schedule_window_update(self)

    def update_window(self) -> None:
        """The output is sent now: from now on the peer may use the window that it announces."""
        window = self.connection.limits.incoming_window
        if self._incoming_left * 2 <= window and not self.is_ended:
            self.send_flow()
        self._is_update_scheduled = False
        self._incoming_left = window - ((self._next_incoming_id - self._flow_at_id) & UINT_MAX)

    # -- life -----------------------------------------------------------------------------

    def begin(self, remote_channel: int | None) -> None:
        self.send(
            Begin(
                remote_channel=remote_channel,
                next_outgoing_id=self._next_outgoing_id,
                incoming_window=self._incoming_left,
                outgoing_window=OUTGOING_WINDOW,
                handle_max=self.connection.options.limits.links_per_session_max,
            )
        )

    def on_begin(self, begin: Begin) -> None:
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = begin.incoming_window
        self._remote_handle_max = begin.handle_max

    def end(self, error: AmqpError | None = None) -> None:
        """End the session from our side."""
        self.send(End(error=None if error is None else wire_error(error)))
        self.is_ended = True
        self._outbox.clear()
        for link in self.links.values():
            link.forget_partial()
            link.is_detached = True

    def abandon(self) -> None:
        """The connection is closed; so are the links, without a frame."""
        self.is_ended = True
        self._outbox.clear()
        for link in self.links.values():
            link.forget_partial()
            link.is_detached = True
            link.owner = None
        self.links.clear()
        self._names.clear()
        self.owner = None

    def attach_sender(self, attach: Attach) -> SenderLink:
        """Client role: attach a link that we send on."""
        link = SenderLink(self, attach.handle, attach.name)
        self._names[link.name, link.role] = link
        self.send(attach)
        return link

    def attach_receiver(self, attach: Attach) -> ReceiverLink:
        """Client role: attach a link that we receive on."""
        link = ReceiverLink(self, attach.handle, attach.name)
        self._names[link.name, link.role] = link
        self.send(attach)
        return link

    def _register(self, link: AnyLink, attach: Attach) -> None:
        link.remote = attach
        self.links[attach.handle] = link
        self._names[link.name, link.role] = link

    def _unregister(self, link: Link) -> bool:
        """Remove a link; whether it was attached."""
        self._names.pop((link.name, link.role), None)
        link.forget_partial()
        return link.remote is not None and self.links.pop(link.remote.handle, None) is not None

    def forget_detached(self, link: Link) -> None:
        """We detached first; until the peer responds, its frames for the handle are ignored."""
        if self._unregister(link):
            self._detached_handles.add(link.peer.handle)

    # -- receiving ------------------------------------------------------------------------

    def receive_transfer(self, transfer: Transfer, payload: bytes, events: list[Event]) -> None:
        """Handle a transfer: the hot path of receive()."""
        try:
            self._on_transfer(transfer, payload, events)
        except AmqpError as error:
            self._fail(error, events)

    def run_room(self) -> int:
        """How many transfers of a run may be taken without checking each."""
        return max(0, self._incoming_left)

    def receive_run(self, run: DeliveriesReceived, events: list[Event]) -> None:
        """Handle a run of transfers, each a whole delivery with the expected id."""
        count = len(run.payloads)
        self._next_incoming_id = (self._next_incoming_id + count) & UINT_MAX
        self._incoming_left -= count
        run.link.count_run(run.first_id, count)
        events.append(run)
        if self._incoming_left * 2 <= self.connection.limits.incoming_window:
            self._schedule_window_update()

    def receive(self, performative: Performative, events: list[Event]) -> None:
        """Handle any other frame of this session."""
        try:
            match performative:
                case Flow():
                    self._on_flow(performative, events)
                case Disposition():
                    self._on_disposition(performative, events)
                case Attach():
                    self._on_attach(performative, events)
                case Detach():
                    self._on_detach(performative, events)
                case _:
                    raise AmqpError(
                        Condition.NOT_ALLOWED,
                        f"A {type(performative).__name__.lower()} frame is not allowed here.",
                    )
        except AmqpError as error:
            self._fail(error, events)

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        self.end(error)
        events.append(SessionEnded(self, wire_error(error)))

    def _on_transfer(self, transfer: Transfer, payload: bytes, events: list[Event]) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) & UINT_MAX
        self._incoming_left -= 1
        if self._incoming_left < 0:
            raise AmqpError(
                Condition.SESSION_WINDOW_VIOLATION,
                "More transfers were sent than the session window allows. Wait for a flow frame.",
            )
        link = self.links.get(transfer.handle) or self._link(transfer.handle)
        if link is not None:
            try:
                self._deliver(link, transfer, payload, events)
            except AmqpError as error:
                self._fail_link(link, error, events)
        if self._incoming_left * 2 <= self.connection.limits.incoming_window:
            self._schedule_window_update()

    def _deliver(
        self, link: AnyLink, transfer: Transfer, payload: bytes, events: list[Event]
    ) -> None:
        if not isinstance(link, ReceiverLink):
            raise AmqpError(
                Condition.NOT_ALLOWED, "A transfer was sent on a link that only receives."
            )
        whole = link.receive(transfer, payload)
        if whole is None:
            return
        first, body = whole
        delivery_id = first.delivery_id or 0
        events.append(
            DeliveryReceived(
                link,
                delivery_id,
                first.message_format or 0,
                body,
                bool(first.settled),
                link.is_repeat(delivery_id),
                first.delivery_tag or b"",
            )
        )

    def _fail_link(self, link: AnyLink, error: AmqpError, events: list[Event]) -> None:
        link.detach(error)
        events.append(LinkDetachedEvent(link, wire_error(error)))

    def _link(self, handle: int) -> AnyLink | None:
        link = self.links.get(handle)
        if link is None and handle not in self._detached_handles:
            raise AmqpError(
                Condition.SESSION_UNATTACHED_HANDLE, f"No link is attached with handle {handle}."
            )
        return link

    def _on_flow(self, flow: Flow, events: list[Event]) -> None:
        was_blocked = self.is_blocked
        start = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        in_transit = (self._next_outgoing_id - start) & UINT_MAX
        if in_transit >= 0x80000000:
            raise AmqpError(
                Condition.INVALID_FIELD, "The flow acknowledges transfers that were never sent."
            )
        self._remote_window = max(0, flow.incoming_window - in_transit)
        self._drain_outbox()
        if was_blocked and not self.is_blocked:
            events.append(WindowOpened(self))
        if flow.handle is None:
            if flow.echo:
                self.send_flow()
            return
        link = self._link(flow.handle)
        if isinstance(link, SenderLink):
            try:
                link.on_flow(flow)
            except AmqpError as error:
                self._fail_link(link, error, events)
                return
            events.append(CreditChanged(link))
        elif link is not None and link.on_drained(flow):
            events.append(LinkDrained(link))
        if link is not None and flow.echo:
            self.send_flow(link)

    def _on_disposition(self, disposition: Disposition, events: list[Event]) -> None:
        first = disposition.first
        last = first if disposition.last is None else disposition.last
        if last != first and not serial_is_after(last, first):
            raise AmqpError(
                Condition.INVALID_FIELD, "The first delivery of a disposition is after its last."
            )
        events.append(
            DispositionReceived(
                self,
                disposition.role,
                first,
                last,
                bool(disposition.settled),
                disposition.state,
            )
        )

    def _on_attach(self, attach: Attach, events: list[Event]) -> None:
        own = self._find_own_link(attach)
        if own is not None:
            self._register(own, attach)
            own.is_attached = True
            if isinstance(own, ReceiverLink):
                own.delivery_count = attach.initial_delivery_count or 0
            events.append(LinkAttached(own))
            return
        self._check_attach(attach)
        self._detached_handles.discard(attach.handle)
        kind = ReceiverLink if attach.role is ROLE_SENDER else SenderLink
        link = kind(self, attach.handle, attach.name)
        self._register(link, attach)
        if isinstance(link, ReceiverLink):
            link.delivery_count = attach.initial_delivery_count or 0
        events.append(LinkAttached(link))

    def _find_own_link(self, attach: Attach) -> AnyLink | None:
        """The link that we attached and that this attach responds to (client role)."""
        ours = ROLE_RECEIVER if attach.role is ROLE_SENDER else ROLE_SENDER
        link = self._names.get((attach.name, ours))
        return link if link is not None and link.remote is None else None

    def _check_attach(self, attach: Attach) -> None:
        limits = self.connection.limits
        ours = ROLE_RECEIVER if attach.role is ROLE_SENDER else ROLE_SENDER
        if attach.handle in self.links:
            raise AmqpError(
                Condition.SESSION_HANDLE_IN_USE,
                f"Handle {attach.handle} is in use by another link.",
            )
        if (attach.name, ours) in self._names:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                "A link with this name and role is attached already. Detach it first.",
            )
        if attach.handle > limits.links_per_session_max:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                f"Handle {attach.handle} is above the agreed handle-max of "
                f"{limits.links_per_session_max}.",
            )
        terminuses = (attach.source, attach.target)
        texts = (attach.name, *(getattr(each, "address", None) or "" for each in terminuses))
        if max(map(len, texts)) > limits.link_text_characters_max:
            raise AmqpError(
                Condition.INVALID_FIELD,
                "The name or an address of a link has more than "
                f"{limits.link_text_characters_max} characters. Shorten it.",
            )
        if self.connection.link_count >= limits.links_per_connection_max:
            raise AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"A connection may have {limits.links_per_connection_max} links now. Detach one, "
                "open another connection, or put a token to $cbs first.",
            )

    def _on_detach(self, detach: Detach, events: list[Event]) -> None:
        if detach.handle in self._detached_handles:
            self._detached_handles.discard(detach.handle)
            return
        link = self._link(detach.handle)
        if link is None:
            return
        link.is_detached = True
        self._unregister(link)
        self.send(Detach(handle=link.handle, closed=True))
        events.append(LinkDetachedEvent(link, detach.error))
