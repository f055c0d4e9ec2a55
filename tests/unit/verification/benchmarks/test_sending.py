"""The publish loops against a broker of a few lines on the other end of a socket pair."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from verification.benchmarks.sending import publish_paced, publish_windowed

DELIVERY_BYTES = 4


class CountingPublisher:
    """Deliveries are their own numbers; so are the acknowledgements."""

    messages_per_delivery = 10
    delivery_bytes = DELIVERY_BYTES

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.outstanding = 0
        self.outstanding_most = 0

    def room(self) -> int:
        return 1 << 30

    def encode(self, first: int, count: int) -> bytes:
        self.outstanding += count
        self.outstanding_most = max(self.outstanding_most, self.outstanding)
        return b"".join(number.to_bytes(4, "big") for number in range(first, first + count))

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        numbers = [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]
        self.outstanding -= len(numbers)
        return [(number, number) for number in numbers]

    def close(self) -> None:
        self.sock.close()


@contextmanager
def broker(before_answer: Callable[[int], None]) -> Iterator[CountingPublisher]:
    """A publisher whose broker returns each delivery, after ``before_answer`` was called."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        answers = 0
        while data := theirs.recv(DELIVERY_BYTES, socket.MSG_WAITALL):
            before_answer(answers)
            theirs.sendall(data)
            answers += 1
        theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield CountingPublisher(ours)
    finally:
        ours.close()
        thread.join()


def test_a_windowed_run_keeps_to_its_window_and_waits_for_the_last_acknowledgement() -> None:
    # Given a broker that acknowledges everything
    with broker(lambda _: None) as publisher:
        # When 500 deliveries of ten messages go out with seven outstanding
        sent = publish_windowed(publisher, window=7, duration_s=60, limit=500)

        # Then all are counted, and the window was used but never exceeded
        assert sent.acknowledged_messages == 5000
        assert publisher.outstanding == 0
        assert publisher.outstanding_most == 7


def test_a_windowed_run_ends_when_its_time_is_up() -> None:
    # Given a broker that needs a millisecond for each delivery
    with broker(lambda _: time.sleep(0.001)) as publisher:
        # When it is published to for 0.2 s
        sent = publish_windowed(publisher, window=5, duration_s=0.2, limit=1 << 40)

        # Then the run ended soon after, with everything that was sent acknowledged
        assert 0.19 < sent.ended_s - sent.started_s < 2
        assert publisher.outstanding == 0


def test_a_stall_is_charged_to_every_delivery_that_was_due_meanwhile() -> None:
    # Given a broker that stalls once for 0.3 s
    with broker(lambda answers: time.sleep(0.3) if answers == 100 else None) as publisher:
        # When 1000 deliveries a second are due for a second
        sent = publish_paced(publisher, rate_per_s=1000, duration_s=1)

    # Then not one but about two hundred of them waited for more than 0.1 s
    late = [latency for latency in sent.latencies_s if latency > 0.1]
    assert len(sent.latencies_s) == 1000
    assert len(late) > 150


def test_a_broker_that_hangs_up_ends_the_run_with_an_error() -> None:
    # Given a connection whose other end will say nothing more
    ours, theirs = socket.socketpair()
    theirs.shutdown(socket.SHUT_WR)

    # When it is published to, then the run fails instead of waiting
    with pytest.raises(ConnectionError, match="closed the connection during a run"):
        publish_windowed(CountingPublisher(ours), window=5, duration_s=1, limit=10)
    ours.close()
    theirs.close()
