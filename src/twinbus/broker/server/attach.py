"""Attach of a link: checks the claim, finds the entity, and chooses the handler of the link.

The order matters. A client without a token does not learn which entities exist, and every refusal
has the standard form (no terminus, then a detach with the reason), because the Azure SDK reads the
reason only from that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.codec.types import Int, Symbol
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.performatives import Coordinator
from twinbus.broker.access.rules import Claim
from twinbus.broker.engine.forwarding import target_of
from twinbus.broker.engine.queue import Queue
from twinbus.broker.faults.injection import inject_attach
from twinbus.broker.server.incoming_link import IncomingLink
from twinbus.broker.server.management_node import ManagementNode
from twinbus.broker.server.outgoing_link import OutgoingLink
from twinbus.broker.server.request_reply import ReplyLink, RequestLink
from twinbus.broker.server.session_attach import PendingSessionLink, session_wanted
from twinbus.common.entity_path import Address, parse_address
from twinbus.errors import InvalidEntityPath

if TYPE_CHECKING:
    from twinbus.broker.server.connection import ClientConnection

AnyLink = SenderLink | ReceiverLink
AnyLinkHandler = IncomingLink | OutgoingLink | RequestLink | ReplyLink | PendingSessionLink

SETTLED = 1
BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")


def handle_attach(peer: ClientConnection, link: AnyLink) -> None:
    """Answer an attach: accept it with a handler for the link, or refuse it."""
    try:
        end = _make_handler(peer, link)
        if not peer.namespace.links.may_take(peer.links):
            raise AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"The link limit is reached: {peer.namespace.options.links_max} in the namespace, "
                "of which each key has a share. Close some links.",
            )
        faults = peer.namespace.faults
        if not faults.has_no_faults and inject_attach(faults, end):
            return
    except AmqpError as error:
        link.refuse(error)
        return
    if isinstance(end, PendingSessionLink):
        # It is answered when the session is locked.
        end.keep_details()
        peer.keep(link, end)
        return
    attach = link.peer
    size_max = None
    properties = None
    if isinstance(end, IncomingLink):
        size_max = end.queue.description.max_message_size_bytes
        properties = {BATCH_SIZE: Int(size_max)}
        if isinstance(link, ReceiverLink):
            # The batch format adds a little to the messages in it.
            link.message_size_bytes_max = peer.limits.batch_size_bytes_max
    link.accept(
        source=attach.source,
        target=attach.target,
        max_message_size=size_max,
        properties=properties,
    )
    link.forget_details()
    peer.keep(link, end)


def _make_handler(peer: ClientConnection, link: AnyLink) -> AnyLinkHandler:
    address = _address(link)
    if address.node == "cbs":
        if isinstance(link, ReceiverLink):
            return RequestLink(peer, link, "$cbs", peer.cbs_node.handle)
        return ReplyLink(peer, link, "$cbs")
    if address.node == "management":
        return _make_management_handler(peer, link, address)
    if isinstance(link, ReceiverLink):
        peer.authorization.demand(address.path, Claim.SEND)
        if address.sub_queue is not None:
            raise AmqpError(Condition.NOT_ALLOWED, "A dead-letter queue cannot be sent to.")
        target = _queue(peer, address)
        if not target.description.takes_messages:
            raise AmqpError(
                Condition.NOT_ALLOWED, "A subscription cannot be sent to. Send to its topic."
            )
        return IncomingLink(peer, link, target, address.path)
    peer.authorization.demand(address.path, Claim.LISTEN)
    queue = _queue(peer, address)
    if not queue.description.gives_messages:
        raise AmqpError(
            Condition.NOT_ALLOWED,
            "A topic cannot be received from. Receive from one of its subscriptions.",
        )
    if target_of(queue) is not None:
        raise forwarded_error(queue)
    wanted = session_wanted(link, queue)
    if not queue.description.status.can_receive:
        raise AmqpError(
            Condition.ENTITY_DISABLED,
            f"The {queue.description.kind} {queue.description.display_path!r} cannot be received "
            f"from: its status is {queue.description.status}.",
        )
    deletes = link.peer.snd_settle_mode == SETTLED
    if wanted is not None:
        return PendingSessionLink(
            peer, link, queue, address.path, wanted, deletes_on_receipt=deletes
        )
    return OutgoingLink(peer, link, queue, address.path, deletes_on_receipt=deletes)


def forwarded_error(queue: Queue) -> AmqpError:
    """The error for receivers of an entity whose messages are forwarded."""
    return AmqpError(
        Condition.NOT_ALLOWED,
        f"The messages of {queue.description.display_path!r} are forwarded to "
        f"{target_of(queue)!r}. Receive there.",
    )


def _make_management_handler(
    peer: ClientConnection, link: AnyLink, address: Address
) -> AnyLinkHandler:
    for claim in (Claim.LISTEN, Claim.SEND):
        try:
            peer.authorization.demand(address.path, claim)
            break
        except AmqpError:
            if claim is Claim.SEND:
                raise
    queue = _queue(peer, address)
    path = str(address)
    if isinstance(link, ReceiverLink):
        return RequestLink(peer, link, path, ManagementNode(peer, queue, address.path).handle)
    return ReplyLink(peer, link, path)


def _address(link: AnyLink) -> Address:
    terminus = link.peer.target if isinstance(link, ReceiverLink) else link.peer.source
    if isinstance(terminus, Coordinator):
        raise AmqpError(Condition.NOT_IMPLEMENTED, "Transactions are not supported.")
    if terminus is None or not terminus.address:
        raise AmqpError(
            Condition.INVALID_FIELD, "The attach has no address. Set the address of its terminus."
        )
    if terminus.dynamic:
        raise AmqpError(Condition.NOT_IMPLEMENTED, "Dynamic nodes are not supported.")
    try:
        return parse_address(terminus.address)
    except InvalidEntityPath as error:
        raise AmqpError(Condition.ARGUMENT_ERROR, str(error)) from error


def _queue(peer: ClientConnection, address: Address) -> Queue:
    queue = peer.namespace.catalogue.find(address.entity, address.sub_queue)
    if queue is None:
        raise AmqpError(
            Condition.NOT_FOUND,
            f"Entity {address.path!r} not found in namespace {peer.namespace.name!r}. "
            "Create it first.",
        )
    queue.accessed_at_ms = peer.now.wall_ms
    queue.visit_count += 1
    return queue
