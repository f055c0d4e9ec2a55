"""A prober: a well-behaved client in a process of its own, on another entity with another key.

    with attacked(broker) as attack:      # measures a calm while first
        ...                               # the attack
        attack.lasted(3.0)                # at least so long
                                          # then: p99, memory at its peak, memory 10 s later

The bystander of ``guards.py`` watches every case from a thread of the test; an attack that keeps
the test's own process busy would slow that thread, too. The prober shares nothing with the attacker
but the broker and the machine.

Rule 1: the limits are absolute figures of a quiet machine. Where others use the machine, they grow
        with what the same prober measured before the attack began, and with the time that the
        broker waited for a processor during the attack, as the kernel counts it.
        A single long wait hardly changes that sum: the prober's clock stands while it lasts.
Rule 2: a prober that gets no answer for STALL_S_MAX fails the case by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.adversarial.guards import (
    CALM_FACTOR,
    KEPT_BYTES_MAX,
    SETTLE_TIMEOUT_S,
    round_ms,
    wait_until,
)
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from verification.fair_clock import FairClock, run_times

# With CALM_FACTOR: a calm p99 of up to 20 ms is a quiet machine.
P99_MS_MAX = 100.0
# The attacker and the prober need processors, too: so much is a quiet machine.
QUIET_SLOWDOWN = 1.5
STALL_S_MAX = 10.0
MEMORY_BYTES_MAX = 512 << 20
CALM_S = 1.5
SAMPLE_S = 0.05
PAUSE_S = 0.005
OPERATIONS_MIN = 60
"""Fewer under attack make no p99: the attack was too short, or the prober was stopped."""


@dataclass
class Attack:
    """What the prober saw before the attack, and what it sees while it lasts."""

    broker: BrokerProcess
    prober: subprocess.Popen[str]
    calm_bytes: int
    calm_ms: list[float] = field(default_factory=list)
    seen_ms: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    began_s: float = 0.0
    ran: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How long the broker's threads had run and had waited for a processor at its beginning."""
    _is_over: threading.Event = field(default_factory=threading.Event)

    def lasted(self, seconds: float) -> None:
        """Let the attack go on until it has lasted so long."""
        time.sleep(max(0.0, self.began_s + seconds - time.monotonic()))

    def watch_memory(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, self.broker.memory_bytes())

    def read_prober(self) -> None:
        """One line of JSON for each round; the main thread moves on when enough are there."""
        assert self.prober.stdout is not None
        for line in self.prober.stdout:
            (self.seen_ms if self.began_s else self.calm_ms).extend(json.loads(line))

    def stop_watching(self) -> None:
        self._is_over.set()

    @property
    def limit_ms(self) -> float:
        return max(P99_MS_MAX, CALM_FACTOR * p99(self.calm_ms)) * self.slowdown

    @property
    def slowdown(self) -> float:
        """How much longer everything took because the machine ran others than the broker."""
        now = run_times(self.broker.pid)
        spent = [
            (ran - self.ran.get(thread, (0, 0))[0], waited - self.ran.get(thread, (0, 0))[1])
            for thread, (ran, waited) in now.items()
        ]
        total = sum(ran for ran, _waited in spent)
        # The thread that had to wait most among those that matter: the loop or the writer.
        ratios = [(ran + waited) / ran for ran, waited in spent if ran > total / 50 > 0]
        return max(1.0, max(ratios, default=1.0) / QUIET_SLOWDOWN)

    def check(self) -> None:
        """What must hold once the attack is over."""
        figures = (
            f"calm p99 {p99(self.calm_ms):.1f} ms of {len(self.calm_ms)}, "
            f"under attack {p99(self.seen_ms):.1f} ms of {len(self.seen_ms)} "
            f"(at most {max(self.seen_ms, default=0):.0f} ms), "
            f"slowdown {self.slowdown:.1f}, "
            f"memory {self.calm_bytes >> 20} MB, peak {self.peak_bytes >> 20} MB"
        )
        print(figures)
        assert self.broker.is_alive, f"the broker is gone\n{self.broker.log()[-4_000:]}"
        served_min = OPERATIONS_MIN / self.slowdown
        assert len(self.seen_ms) >= served_min, f"the prober was stopped: {figures}"
        assert p99(self.seen_ms) <= self.limit_ms, figures
        assert self.peak_bytes <= MEMORY_BYTES_MAX, figures
        wait_until(
            lambda: self.broker.memory_bytes() <= self.calm_bytes + KEPT_BYTES_MAX,
            lambda: (
                f"{(self.broker.memory_bytes() - self.calm_bytes) >> 20} MB were kept: {figures}"
            ),
            SETTLE_TIMEOUT_S * self.slowdown,
        )


def p99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[int(len(ordered) * 0.99)] if ordered else float("inf")


@contextmanager
def attacked(broker: BrokerProcess) -> Iterator[Attack]:
    """Run a prober, before and during an attack; check its figures afterwards."""
    queue = broker.fresh_queue()
    prober = subprocess.Popen(
        [sys.executable, "-m", __name__, str(broker.port), str(broker.pid), queue],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert prober.stdin is not None
    prober.stdin.write(broker.token() + "\n")
    prober.stdin.flush()
    attack = Attack(broker, prober, calm_bytes=broker.memory_bytes())
    reader = threading.Thread(target=attack.read_prober, daemon=True)
    reader.start()
    wait_until(
        lambda: len(attack.calm_ms) >= OPERATIONS_MIN,
        lambda: "the prober is not served although nobody attacks",
        20,
    )
    time.sleep(CALM_S)
    attack.calm_bytes = attack.peak_bytes = broker.memory_bytes()
    watch = threading.Thread(target=attack.watch_memory, daemon=True)
    watch.start()
    attack.ran = run_times(broker.pid)
    attack.began_s = time.monotonic()
    try:
        yield attack
        prober.stdin.close()  # It ends its round and leaves.
        assert prober.wait(STALL_S_MAX + 5) == 0, "the prober failed; its error is above"
        reader.join(5)
        attack.stop_watching()
        attack.check()
    finally:
        attack.stop_watching()
        prober.kill()
        prober.wait()
        reader.join(5)
        watch.join(5)
        for pipe in (prober.stdin, prober.stdout):
            if pipe is not None:
                pipe.close()


# --- the process -------------------------------------------------------------------------------


def probe(port: int, pid: int, queue: str, token: str) -> None:
    """Send, receive and complete until standard input ends."""
    leaving = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), leaving.set()), daemon=True).start()
    with connected(port, token) as client:
        client.timeout_s = STALL_S_MAX
        sender, receiver = client.attach_sender(queue), client.attach_receiver(queue)
        number, clock = 0, FairClock(lambda: [pid])
        while not leaving.wait(PAUSE_S):
            number += 1
            body = b"probe %d" % number
            print(json.dumps(round_ms(client, sender, receiver, body, clock)), flush=True)


if __name__ == "__main__":
    probe(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.stdin.readline().strip())
