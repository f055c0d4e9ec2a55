"""A broker without sockets, threads or clocks, whose loop measures every callback.

    broker = MemoryBroker()
    line = broker.connect()
    broker.measure(meter)     what was before is the price of the harness
    line.say(data)            in pieces, as sockets deliver them
    broker.run()              until there is nothing left to do

Everything between the transport and the store is the real thing. The store's threads run when the
loop has nothing to do, and are not measured: they do not hold the loop.

Rule 1: one callback of the loop, or one call of ``data_received``, is one measured call.
Rule 2: time stands still, so that the same bytes give the same answers.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

from tests.support.catalogue_changes import unheard
from tests.support.simulated_loop import SimLoop, SimThread, Timer
from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import RuleDescription, SqlAction, SqlFilter
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.options import BrokerOptions
from twinbus.broker.server.connection import ClientConnection
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.common.sas_token import make_token
from verification.fuzz import conversations, grammar
from verification.fuzz.conversations import Who
from verification.fuzz.oracle import Meter

KEY: Final = "k" * 44
CLAIMS: Final = {
    Who.SENDER: Claim.SEND,
    Who.LISTENER: Claim.LISTEN,
    Who.MANAGER: Claim.SEND | Claim.LISTEN | Claim.MANAGE,
}
RULES: Final = RuleSet(
    tuple(AuthorizationRule(who.name, claims, KEY, KEY) for who, claims in CLAIMS.items())
)
# What one read of uvloop's and asyncio's sockets brings at most.
READ_BYTES_MAX: Final = 256 * 1024
# Callbacks after which a conversation is over, whatever is left to do.
CALLBACKS_MAX: Final = 200_000
# What was there before the conversation, for those who receive.
FILL_COUNT: Final = 40

TOPIC_RULES: Final = (
    RuleDescription("named", SqlFilter("colour = 'red' OR name LIKE '%a%b%'")),
    RuleDescription("numbered", SqlFilter("sys.size > 10 AND a IS NOT NULL")),
    RuleDescription(
        "changed", SqlFilter("EXISTS(a)"), SqlAction("SET b = a + '!'; REMOVE c; SET sys.to = 'x'")
    ),
)
CHOOSY_RULES: Final = tuple(
    RuleDescription(f"like{number}", SqlFilter(f"name LIKE '%a{'_' * number}b%' OR a > {number}"))
    for number in range(12)
)


class MeasuredLoop(SimLoop):
    """The simulated loop, each callback measured under the name of its function."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter
        self.callback_count = 0

    def _run(self, timer: Timer) -> None:
        self.callback_count += 1
        self.meter.call(_name_of(timer), timer.run)


def _name_of(timer: Timer) -> str:
    callback: Any = timer.callback
    callback = getattr(callback, "func", callback)
    return str(getattr(callback, "__qualname__", type(callback).__name__))


class Line(asyncio.Transport):
    """The broker's side of one connection, and how much was written to it."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__()
        self._broker = broker
        self._is_closing = False
        self.is_paused = False
        self.written_bytes = 0
        # A peer takes the loop that runs; for a moment this is ours.
        asyncio._set_running_loop(broker.loop)  # type: ignore[arg-type]
        try:
            self.peer = ClientConnection(broker.namespace)
            self.peer.connection_made(self)
        finally:
            asyncio._set_running_loop(None)

    def say(self, data: bytes) -> None:
        """Give the peer bytes when it reads, and let the loop turn in between."""
        pos = 0
        while pos < len(data) and not self._is_closing:
            if self.is_paused:
                if not self._broker.step():
                    return  # Nobody will ever read on; the rest stays in the socket.
                continue
            piece = data[pos : pos + READ_BYTES_MAX]
            pos += len(piece)
            self._broker.meter.call("data_received", self.peer.data_received, piece)
            self._broker.step()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if name in ("peername", "sockname") else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written_bytes += len(data)

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything is read at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The peer has heard."""

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._broker.meter.call("connection_lost", self.peer.connection_lost, None)

    close = abort


class MemoryBroker:
    """One namespace with a few entities."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.loop = MeasuredLoop(self.meter)
        self._threads: list[SimThread] = []
        self.namespace = Namespace(
            "fuzz",
            MemoryStore(),
            RULES,
            BrokerOptions(),
            self.loop,
            Random(1),
            loop=self.loop,
            start_thread=self._start_thread,
        )
        for description, rules in _entities():
            self._create(description, rules)
            self.run()

    def measure(self, meter: Meter) -> None:
        """From now on."""
        self.meter = self.loop.meter = meter
        self.loop.callback_count = 0
        meter.begin()

    def _create(
        self, description: QueueDescription, rules: tuple[RuleDescription, ...] | None
    ) -> None:
        at_ms = self.namespace.now().wall_ms
        self.namespace.submit(lambda draft: draft.create(description, rules, at_ms), unheard)

    def _start_thread(self, *arguments: Any) -> Any:
        thread = SimThread(*arguments)
        self._threads.append(thread)
        return thread

    def connect(self) -> Line:
        return Line(self)

    def step(self) -> bool:
        """One turn of the loop, or one job of a thread; False when there is nothing to do."""
        if self.loop.callback_count > CALLBACKS_MAX:
            return False
        if self.loop.is_busy:
            self.loop.turn()
            return True
        for thread in self._threads:
            if thread.has_jobs:
                thread.run()
            if thread.has_answers:
                thread.tell()
                return True
        return False

    def run(self) -> None:
        """Let everything happen that needs no more time."""
        while self.step():
            pass


def _entities() -> list[tuple[QueueDescription, tuple[RuleDescription, ...] | None]]:
    return [
        (QueueDescription(path="orders"), None),
        (QueueDescription(path="sessions", requires_session=True), None),
        (QueueDescription(path="once", requires_duplicate_detection=True), None),
        (TopicDescription(path="events"), None),
        (SubscriptionDescription(path="events/subscriptions/all"), None),
        (SubscriptionDescription(path="events/subscriptions/some"), TOPIC_RULES),
        (TopicDescription(path="choosy"), None),
        (SubscriptionDescription(path="choosy/subscriptions/few"), CHOOSY_RULES),
    ]


# --- handshakes ----------------------------------------------------------------------------------


def _handshake(who: Who) -> bytes:
    """What an honest client says before the input begins."""
    if who is Who.STRANGER:
        return b""
    mechanism = conversations.described(0x41, grammar.plain_list(grammar.symbol(b"ANONYMOUS")))
    said = [b"AMQP\x03\x01\x00\x00", grammar.frame(mechanism, kind=1), b"AMQP\x00\x01\x00\x00"]
    opened = grammar.described(
        0x10,
        grammar.plain_list(
            grammar.string(b"fuzz"), grammar.string(b"localhost"), conversations.uint(1 << 20)
        ),
    )
    begun = grammar.described(
        0x11,
        grammar.plain_list(b"\x40", b"\x43", conversations.uint(2_048), conversations.uint(2_048)),
    )
    said += [grammar.frame(opened), grammar.frame(begun)]
    if who in CLAIMS:
        # The session of the token is another one: that of the input has all its handles.
        said.append(grammar.frame(begun, channel=255))
        said += _token_frames(who)
    return b"".join(said)


def _token_frames(who: Who) -> list[bytes]:
    token = make_token(
        resource="sb://localhost/", rule_name=who.name, key=KEY, expires_s=4_000_000_000
    )
    own = grammar.plain_map(
        *map(
            grammar.string,
            (b"operation", b"put-token", b"type", b"servicebus.windows.net:sastoken", b"name",
             b"sb://localhost/"),
        )
    )  # fmt: skip
    request = (
        grammar.described(0x74, own)
        + grammar.described(0x77, grammar.string(token.encode()))
    )  # fmt: skip
    link = conversations.plain_attach
    return [
        grammar.frame(link(b"replies", 0, b"$cbs", is_sender=False), channel=255),
        grammar.frame(link(b"requests", 1, b"$cbs", is_sender=True), channel=255),
        grammar.frame(conversations.plain_transfer(1, 0), request, channel=255),
    ]


HANDSHAKES: Final = {who: _handshake(who) for who in Who}


def fill() -> bytes:
    """What a manager sends first, so that there is something to receive."""
    said = []
    delivery = 0
    for handle, address in enumerate((b"orders", b"sessions", b"events")):
        said.append(
            grammar.frame(conversations.plain_attach(b"fill%d" % handle, handle, address,
                                                     is_sender=True))
        )  # fmt: skip
        for number in range(FILL_COUNT):
            payload = _filling(number, is_session=address == b"sessions")
            said.append(grammar.frame(conversations.plain_transfer(handle, delivery), payload))
            delivery += 1
    return b"".join(said)


def _filling(number: int, *, is_session: bool) -> bytes:
    session = [b"\x40"] * 9 + [grammar.string(b"berlin")] if is_session else []
    properties = grammar.plain_list(grammar.string(b"m%d" % number), *session)
    own = grammar.plain_map(grammar.string(b"a"), grammar.string(b"x" * number))
    body = grammar.string(b"b" * (10 * number), 0xA0)
    return (
        grammar.described(0x73, properties)
        + grammar.described(0x74, own)
        + grammar.described(0x75, body)
    )


FILLING: Final = HANDSHAKES[Who.MANAGER] + fill()
