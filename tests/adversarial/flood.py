"""Many connections of one key that send as fast as they are read from, in a process of their own.

    with flooding(broker, queue, token, Flood(connections=40)) as flood:
        ...

Rule 1: it runs below the priority of everybody else. What is measured is how the broker shares,
        not how the machine does.
Rule 2: it is told when to stop by the end of its standard input, and says how much it sent.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from tests.adversarial.raw_peer import FIRST_FREE_HANDLE, RawPeer, Stage, sender
from tests.adversarial.talk import BATCH, batch_of
from tests.support.broker_process import BrokerProcess
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Attach, Transfer, encode_performative

NICENESS = 10
READY_TIMEOUT_S = 60
# Below everybody else's priority it may not even come to notice that it is to stop.
STOP_TIMEOUT_S = 2


@dataclass(frozen=True, kw_only=True)
class Flood:
    """What each connection sends, over and over."""

    connections: int = 1
    links: int = 1
    body_bytes: int = 250_000
    batch_count: int = 0
    """Messages in one batch; 0 sends single messages."""
    reads: bool = True
    """Whether it reads what the broker answers."""
    sends_max: int = 0
    """How many deliveries each connection sends; 0 goes on until it is stopped."""
    properties: int = 0
    """Application properties of each message, which make it dear to check."""

    @property
    def payload(self) -> bytes:
        values = {f"key-{number}": number for number in range(self.properties)}
        message = Message(
            properties=Properties(),
            application_properties=values or None,
            body=b"x" * self.body_bytes,
        ).encode()
        return batch_of(*[message] * self.batch_count) if self.batch_count else message


@contextmanager
def flooding(
    broker: BrokerProcess, queue: str, token: str, flood: Flood
) -> Iterator[subprocess.Popen[str]]:
    """Flood a queue until the block ends; returns once every connection is at it."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(broker.port), queue, json.dumps(asdict(flood))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(token + "\n")
    process.stdin.flush()
    try:
        assert process.stdout.readline() == "ready\n", "the flood did not begin"
        yield process
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        process.kill()
        process.wait()
        process.stdout.close()


# --- the process -------------------------------------------------------------------------------


class Sender:
    """One connection: the deliveries that it goes on to send."""

    def __init__(self, port: int, queue: str, token: str, flood: Flood) -> None:
        peer = RawPeer(port, token).to(Stage.AUTHORIZED)
        for link in range(flood.links):
            peer.say(sender(queue, FIRST_FREE_HANDLE + link))
        for _ in range(flood.links):
            peer.wait_for(Attach)
        self.socket: socket.socket = peer.socket
        self.socket.setblocking(False)
        self._flood = flood
        self._payload = flood.payload
        self._delivery_id = 0
        self._left = memoryview(b"")
        self.is_over = False

    def write(self) -> None:
        """Send what the socket takes."""
        try:
            while self._left or self._next():
                self._left = self._left[self.socket.send(self._left) :]
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True

    def _next(self) -> bool:
        flood = self._flood
        if flood.sends_max and self._delivery_id >= flood.sends_max:
            return False
        head = Transfer(
            FIRST_FREE_HANDLE + self._delivery_id % flood.links,
            delivery_id=self._delivery_id,
            delivery_tag=self._delivery_id.to_bytes(4, "big"),
            message_format=BATCH if flood.batch_count else 0,
            settled=False,
        )
        self._delivery_id += 1
        self._left = memoryview(encode_frame(0, encode_performative(head), self._payload))
        return True

    def read(self) -> None:
        """Throw away what the broker says."""
        try:
            while data := self.socket.recv(1 << 18):
                del data
            self.is_over = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True


def main(port: int, queue: str, settings: dict[str, Any], token: str) -> None:
    flood = Flood(**settings)
    os.nice(NICENESS)
    leaving = threading.Event()
    senders = [Sender(port, queue, token, flood) for _ in range(flood.connections)]
    threading.Thread(target=lambda: (sys.stdin.read(), leaving.set()), daemon=True).start()
    selector = selectors.DefaultSelector()
    wanted = selectors.EVENT_WRITE | (selectors.EVENT_READ if flood.reads else 0)
    for each in senders:
        selector.register(each.socket, wanted, each)
    print("ready", flush=True)
    while not leaving.is_set():
        for key, events in selector.select(0.1):
            each = key.data
            if events & selectors.EVENT_READ:
                each.read()
            if events & selectors.EVENT_WRITE and not each.is_over:
                each.write()
            if each.is_over:
                selector.unregister(each.socket)
        if flood.sends_max:
            leaving.wait(0.001)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.stdin.readline().strip())
