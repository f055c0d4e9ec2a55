"""What must be true around every hostile case, whatever the case does.

    G1 same process      G2 a bystander is served as fast as before
    G3 memory bounded    G4 the bystander loses nothing and gets nothing strange
    G5 a quiet log       G6 nobody let in: the vault is untouched
    G7 no descriptor left
    G8 the documented error within a second: measured by the cases, with answer_timeout_s

Rule 1: one bystander runs for the whole session, on a connection and a queue of its own.
Rule 2: a guard compares with what was true when its case began, so cases do not add up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Accepted
from twinbus.common.connection_string import parse_connection_string

BYSTANDER_QUEUE = "bystander"
VAULT_QUEUE = "vault"
VAULT_MESSAGE_COUNT = 3

LATENCY_MS_MAX = 250.0
# A machine that is busy with other things is not the peer's doing: a limit grows with what was
# measured before anybody attacked.
CALM_FACTOR = 5.0
# Nobody is stopped for as long as this, however busy the machine is.
STALL_MS_MAX = 5_000.0
SLOW_SHARE_MAX = 0.01
# A case is short: one hiccup of the machine touches two operations. Over the whole run the share
# above is kept.
SLOW_COUNT_ALLOWED = 2
ANSWER_TIMEOUT_S = 1.0

GROWTH_BYTES_MAX = 64 << 20
KEPT_BYTES_MAX = 16 << 20
SETTLE_TIMEOUT_S = 10.0
POLL_S = 0.02

ROUND_PAUSE_S = 0.01
CALM_ROUNDS = 25


class Bystander:
    """A well-behaved client that sends, receives and completes one message after the other."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander", daemon=True)
        self.rounds = 0
        self.latencies_ms: list[float] = []
        self.memory_peak_bytes = 0
        self.failure: str | None = None
        self.latency_ms_max = LATENCY_MS_MAX

    def start(self) -> Bystander:
        self._thread.start()
        self.await_rounds(CALM_ROUNDS)
        calm_ms = sorted(self.latencies_ms)[-2]
        self.latency_ms_max = max(LATENCY_MS_MAX, CALM_FACTOR * calm_ms)
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def await_rounds(self, count: int) -> None:
        """Wait until that many more rounds are done."""
        wanted = self.rounds + count
        wait_until(
            lambda: self.rounds >= wanted or self.failure is not None,
            lambda: "the bystander is not served any more",
        )
        assert self.failure is None, self.failure

    def slow_share(self, since: int = 0) -> float:
        """Which share of the operations since then took too long."""
        seen = self.latencies_ms[since:]
        return sum(each > self.latency_ms_max for each in seen) / max(1, len(seen))

    def _run(self) -> None:
        try:
            with connected(self._broker.port, self._broker.token()) as client:
                self._serve_rounds(client)
        except Exception as error:
            if not self._stop.is_set():
                self.failure = f"the bystander failed: {error!r}"

    def _serve_rounds(self, client: WireClient) -> None:
        sender = client.attach_sender(BYSTANDER_QUEUE)
        receiver = client.attach_receiver(BYSTANDER_QUEUE)
        while not self._stop.wait(ROUND_PAUSE_S):
            self.latencies_ms += round_ms(client, sender, receiver, b"round %d" % self.rounds)
            self.memory_peak_bytes = max(self.memory_peak_bytes, self._broker.memory_bytes())
            self.rounds += 1


def round_ms(
    client: WireClient,
    sender: SenderLink,
    receiver: ReceiverLink,
    body: bytes,
    clock: Callable[[], float] = time.monotonic,
) -> list[float]:
    """Send a message, receive it and complete it: how long each took, in milliseconds."""
    moments = [clock()]
    state = client.send(sender, Message(properties=Properties(), body=body).encode())
    assert state == Accepted(), state
    moments.append(clock())
    receiver.grant(1)
    event = client.wait_for(DeliveryReceived)
    moments.append(clock())
    got = Message.decode(event.payload).body
    assert got == body, f"sent {body!r} and received {got!r}"
    client.complete(event.delivery_id)
    moments.append(clock())
    return [1_000 * (after - before) for before, after in pairwise(moments)]


@dataclass
class Guard:
    """The conditions of one case; a case may loosen one by saying so."""

    broker: BrokerProcess
    bystander: Bystander
    log_lines_max: int = 1
    """One line for each offence of the case."""
    memory_growth_bytes_max: int = GROWTH_BYTES_MAX
    heard: bytearray = field(default_factory=bytearray)
    """Everything the broker said to the hostile peer, to be searched for secrets."""

    def __post_init__(self) -> None:
        self._pid = self.broker.pid
        self._fd_count = self.broker.fd_count()
        self._vault = vault_of(self.broker)
        self._log_size = len(self.broker.log())
        self._samples = len(self.bystander.latencies_ms)
        self._memory_bytes = self.bystander.memory_peak_bytes = self.broker.memory_bytes()

    def rebase_memory(self) -> None:
        """The case has prepared what it needs; from here on memory is the peer's doing."""
        self._memory_bytes = self.bystander.memory_peak_bytes = self.broker.memory_bytes()

    @property
    def answer_timeout_s(self) -> float:
        """G8: the documented error within a second, longer only where everything takes longer."""
        return ANSWER_TIMEOUT_S * self.bystander.latency_ms_max / LATENCY_MS_MAX

    def check(self) -> None:
        """Everything that must hold once the case is over."""
        self._check_process()
        self._check_log()
        self._check_bystander()
        self._check_descriptors()
        self._check_memory()
        assert vault_of(self.broker) == self._vault, "G6: the vault was changed"

    def _check_process(self) -> None:
        assert self.broker.is_alive, f"G1: the broker is gone\n{self.broker.log()[-4_000:]}"
        assert self.broker.pid == self._pid, "G1: the broker is another process"

    def _check_log(self) -> None:
        written = self.broker.log()[self._log_size :]
        assert "Traceback" not in written, f"G5: a traceback in the log\n{written[-4_000:]}"
        # Offences of earlier cases may be summed up now.
        lines = [line for line in written.splitlines() if "messages suppressed" not in line]
        assert len(lines) <= self.log_lines_max, f"G5: too many lines in the log\n{written[:2_000]}"
        for secret in secrets_of(self.broker):
            assert secret not in written, "G5: a secret is in the log"
            assert secret.encode() not in self.heard, "G5: a secret was sent to the peer"

    def _check_bystander(self) -> None:
        self.bystander.await_rounds(2)
        seen = self.bystander.latencies_ms[self._samples :]
        slow = [round(each) for each in seen if each > self.bystander.latency_ms_max]
        allowed = max(SLOW_COUNT_ALLOWED, int(len(seen) * SLOW_SHARE_MAX))
        assert len(slow) <= allowed, f"G2: {len(slow)} of {len(seen)} took too long: {slow} ms"
        assert max(seen) < STALL_MS_MAX, f"G2: the bystander was stopped for {max(seen):.0f} ms"

    def _check_descriptors(self) -> None:
        wait_until(
            lambda: self.broker.fd_count() <= self._fd_count,
            lambda: f"G7: {self.broker.fd_count()} descriptors instead of {self._fd_count}",
        )

    def _check_memory(self) -> None:
        grown = self.bystander.memory_peak_bytes - self._memory_bytes
        assert grown <= self.memory_growth_bytes_max, f"G3: the broker grew by {grown >> 20} MB"
        wait_until(
            lambda: self.broker.memory_bytes() <= self._memory_bytes + KEPT_BYTES_MAX,
            lambda: f"G3: {(self.broker.memory_bytes() - self._memory_bytes) >> 20} MB were kept",
        )


@contextmanager
def guarded(broker: BrokerProcess, bystander: Bystander) -> Iterator[Guard]:
    """Check G1 to G7 around a hostile case."""
    guard = Guard(broker, bystander)
    yield guard
    guard.check()


def secrets_of(broker: BrokerProcess) -> list[str]:
    """What must never be told: the key, and any signature made with it."""
    key = parse_connection_string(broker.connection_string).shared_access_key
    return [key or "no key", "sig="]


def vault_of(broker: BrokerProcess) -> dict[str, int]:
    """What the vault holds, as the administration sees it."""
    return broker.counts(VAULT_QUEUE)


def fill_vault(broker: BrokerProcess) -> None:
    """Put messages where no hostile peer may ever come."""
    with connected(broker.port, broker.token()) as client:
        sender = client.attach_sender(VAULT_QUEUE)
        for number in range(VAULT_MESSAGE_COUNT):
            body = b"treasure %d" % number
            assert client.send(sender, Message(body=body).encode()) == Accepted()


def wait_until(
    condition: Callable[[], bool], complaint: Callable[[], str], timeout_s: float = SETTLE_TIMEOUT_S
) -> None:
    """Poll until it is true; the complaint says what was wrong at the end."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(POLL_S)
