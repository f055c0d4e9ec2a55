"""A client and a running namespace: every callback of the event loop is one call.

Who speaks is in the first byte: a stranger, somebody who opened and shows no token, a tenant that
may only send, one that may only listen, one that may do everything.
"""

from __future__ import annotations

from verification.fuzz.conversations import Who, who_speaks
from verification.fuzz.in_memory import FILLING, HANDSHAKES, MemoryBroker
from verification.fuzz.oracle import Meter
from verification.fuzz.targets.base import ConversationTarget


class BrokerTarget(ConversationTarget):
    name = "broker"

    def execute(self, data: bytes, meter: Meter) -> None:
        broker = MemoryBroker()
        who = who_speaks(data)
        if who in (Who.LISTENER, Who.MANAGER):
            filler = broker.connect()
            filler.say(FILLING)
            broker.run()
            filler.abort()
            broker.run()
        line = broker.connect()
        line.say(HANDSHAKES[who])
        broker.run()
        broker.measure(meter)
        line.say(data[1:])
        broker.run()
        line.abort()
        broker.run()
        assert broker.namespace.failure is None, "a peer stopped the namespace"


def make() -> BrokerTarget:
    return BrokerTarget()
