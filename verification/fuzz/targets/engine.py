"""A connection without I/O: every frame is one call, as the broker makes it.

A stranger's connection has the limits that the broker gives it before a token.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.connection import Connection, ConnectionOptions, Role
from twinbus.amqp.events import LinkAttached
from twinbus.amqp.limits import AmqpLimits
from verification.fuzz.conversations import STRANGERS, Who, who_speaks
from verification.fuzz.in_memory import HANDSHAKES
from verification.fuzz.oracle import Meter
from verification.fuzz.targets.base import ConversationTarget

LIMITS: Final = AmqpLimits()


class EngineTarget(ConversationTarget):
    name = "engine"

    def execute(self, data: bytes, meter: Meter) -> None:
        who = who_speaks(data)
        early = LIMITS.before_token() if who in STRANGERS else None
        options = ConnectionOptions(container_id="fuzz", limits=LIMITS, early_limits=early)
        connection = Connection(Role.SERVER, options)
        connection.receive(HANDSHAKES[who if who is Who.STRANGER else Who.OPENED])
        meter.begin()
        meter.call("feed", connection.feed, data[1:])
        while (events := meter.call("next_events", connection.next_events)) is not None:
            for event in events:
                if isinstance(event, LinkAttached):
                    attach = event.link.peer
                    meter.call("accept", lambda: event.link.accept(  # noqa: B023
                        source=attach.source, target=attach.target  # noqa: B023
                    ))  # fmt: skip
            if connection.output_count > 500:
                meter.call("take_output", connection.take_output)
        meter.call("take_output", connection.take_output)
        meter.call("abandon", connection.abandon)


def make() -> EngineTarget:
    return EngineTarget()
