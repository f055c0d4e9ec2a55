"""What a backlog queue and a destination do when a mover asks them.

Each of these runs at the service, when a request arrives there, and may return an error as its
answer; its ``facts`` are what the mover sent along.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from twinbus.encoding.brokered_message import encode_message
from twinbus.encoding.envelope import alias
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import MessageNotFound, MessageRefused, ServiceError
from twinbus.message import BrokeredMessage
from verification.simulation.home_checks import check_buried, check_completed
from verification.simulation.network import Request
from verification.simulation.services import LOCK_S, Backlog, Home, Item
from verification.simulation.world import World

CHUNK_COUNT: Final = 6
GRACE_S: Final = 15.0
"""How long a destination may be gone before its messages are dead-lettered."""


@lru_cache(maxsize=1024)
def encoded_for(message_id: str, path: str, is_forged: bool) -> bytes:
    """The message as it is in a backlog queue."""
    plain = encode_message(BrokeredMessage(b"body", message_id=message_id))
    return plain if is_forged else alias(plain, path)


def _delivered(backlog: Backlog, item: Item, world: World) -> ReceivedMessage:
    delivered = ReceivedMessage(
        path=backlog.name,
        encoded=encoded_for(item.mail.message_id, item.mail.path, item.mail.is_forged),
        sequence_number=item.number,
        enqueued_at_ms=int(item.stored_s * 1000),
        locked_until_ms=world.wall_ms() + int(LOCK_S * 1000),
        delivery_count=item.deliveries,
        handle=item.token,
    )
    item.deliveries += 1
    return delivered


def _backlog_of(request: Request) -> Backlog:
    assert isinstance(request.service, Backlog)
    return request.service


def receive(request: Request) -> ServiceError | None:
    backlog, world = _backlog_of(request), request.facts.world
    items = backlog.lock(CHUNK_COUNT, world.now_s)
    request.result = [_delivered(backlog, item, world) for item in items]
    return None


def look(request: Request) -> ServiceError | None:
    items = _backlog_of(request).items.values()
    request.result = [(item.number, item.mail.path) for item in items if item.is_deferred]
    return None


def receive_deferred(request: Request) -> ServiceError | None:
    mover, numbers = request.facts
    backlog, world = _backlog_of(request), mover.world
    items = backlog.lock_deferred(numbers, world.now_s)
    if items is None:
        return MessageNotFound("one of them is not there")
    request.result = [_delivered(backlog, item, world) for item in items]
    return None


def send_home(request: Request) -> ServiceError | None:
    mover, mails = request.facts
    home = request.service
    assert isinstance(home, Home)
    if any(home.refusal(mail) for mail in mails):
        return MessageRefused("one of them is not taken")
    for mail in mails:
        if not home.store(mail):
            mover.world.seen.add("duplicate detection removed a copy")
    return None


def _held(request: Request) -> list[Item]:
    """Those whose lock still holds; the numbers of the others are the result."""
    mover, deliveries, _reason = request.facts
    backlog, now_s = _backlog_of(request), mover.world.now_s
    found = [backlog.held(each.sequence_number, each.handle, now_s) for each in deliveries]
    request.result = [
        each.sequence_number for each, item in zip(deliveries, found, strict=True) if item is None
    ]
    return [item for item in found if item is not None]


def complete(request: Request) -> ServiceError | None:
    mover, backlog = request.facts[0], _backlog_of(request)
    for item in _held(request):
        check_completed(mover.world, item.mail, mover.homes)
        del backlog.items[item.number]
    return None


def defer(request: Request) -> ServiceError | None:
    for item in _held(request):
        item.is_deferred = True
        item.locked_until_s = 0.0
    return None


def abandon(request: Request) -> ServiceError | None:
    for item in _held(request):
        item.locked_until_s = 0.0
    return None


def bury(request: Request) -> ServiceError | None:
    mover, _deliveries, reason = request.facts
    backlog = _backlog_of(request)
    for item in _held(request):
        check_buried(mover.world, item.mail, mover.homes, reason, grace_s=GRACE_S)
        item.mail.buried = reason
        del backlog.items[item.number]
    return None
