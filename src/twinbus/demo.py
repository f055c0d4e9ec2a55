"""``make demo``: a broker is killed in the middle of its work, and nothing is lost.

    broker starts in a process of its own
    the stock Azure SDK sends orders; a receiver completes some of them
    kill -9 while the sender is sending, again and again; restart on the same directory
    everything that was acknowledged is received; the books are closed

The sender repeats what was not acknowledged, so a message can arrive twice and never not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

QUEUE = "orders"
KILLS = 3
SECONDS_BETWEEN_KILLS = 1.5
BATCH = 20
# A send that got no answer within this time is repeated.
SEND_TIMEOUT_S = 5.0


@dataclass
class Books:
    """What the demo counts."""

    acknowledged: set[str] = field(default_factory=set)
    attempted: set[str] = field(default_factory=set)
    received: Counter[str] = field(default_factory=Counter)
    repeated_sends: int = 0
    restart_s: list[float] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return len(self.acknowledged - self.received.keys())

    @property
    def duplicates(self) -> int:
        return self.received.total() - len(self.received)

    @property
    def unexpected(self) -> int:
        return len(self.received.keys() - self.attempted)


class BrokerChild:
    """The broker, as a process that can be killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.connection_string = ""

    def start(self) -> float:
        """Start it; the seconds until it was ready."""
        began_s = time.monotonic()
        command = [sys.executable, "-m", "twinbus", "serve", "--output", "json"]
        command += ["--data", str(self._directory), "--queue", QUEUE, "--admin-port", "0"]
        command += ["--namespace", f"demo:{self._port}"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(os.environ)
        )
        if self._process.stdout is None:
            raise RuntimeError("the broker has no standard output")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the broker ended before it was ready")
        served = json.loads(line)["namespaces"]["demo"]
        self._port, self.connection_string = served["port"], served["connection_string"]
        return time.monotonic() - began_s

    def kill(self) -> int:
        """kill -9; the process id that is no more."""
        process = self._process
        if process is None:
            raise RuntimeError("the broker is not running")
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None
        return process.pid

    def close(self) -> None:
        if self._process is not None:
            self.kill()


def send_orders(broker: BrokerChild, books: Books, stop: threading.Event) -> None:
    """Send until told to stop; what is not acknowledged is sent again, over a new connection."""
    from azure.servicebus import ServiceBusClient, ServiceBusMessage
    from azure.servicebus.exceptions import ServiceBusError

    number = 0
    waiting: list[str] = []
    while not stop.is_set() or waiting:
        try:
            with (
                ServiceBusClient.from_connection_string(
                    broker.connection_string, retry_total=0
                ) as client,
                client.get_queue_sender(QUEUE) as sender,
            ):
                while waiting or not stop.is_set():
                    if not waiting:
                        waiting = [f"order-{number + i}" for i in range(BATCH)]
                        number += BATCH
                        books.attempted.update(waiting)
                    messages = [ServiceBusMessage(f"{i}: 1 coffee", message_id=i) for i in waiting]
                    sender.send_messages(messages, timeout=SEND_TIMEOUT_S)
                    books.acknowledged.update(waiting)
                    waiting = []
        except ServiceBusError:
            books.repeated_sends += len(waiting)
            time.sleep(0.1)


def receive_orders(broker: BrokerChild, books: Books, stop: threading.Event) -> None:
    """Receive and complete until the queue stays empty after the stop."""
    from azure.servicebus import ServiceBusClient
    from azure.servicebus.exceptions import ServiceBusError

    while True:
        try:
            with (
                ServiceBusClient.from_connection_string(
                    broker.connection_string, retry_total=0
                ) as client,
                client.get_queue_receiver(QUEUE) as receiver,
            ):
                while True:
                    was_stopped = stop.is_set()
                    messages = receiver.receive_messages(100, max_wait_time=1)
                    for message in messages:
                        # Counted first: a completion can be on disk although its answer died
                        # with the broker, and then the message does not come again.
                        books.received[str(message.message_id)] += 1
                        receiver.complete_message(message)
                    if was_stopped and not messages:
                        return
        except ServiceBusError:
            time.sleep(0.1)


@contextlib.contextmanager
def running(target: Any, *arguments: Any) -> Iterator[None]:
    """Run a function in a thread and wait for its end."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    yield
    thread.join(60)


def run(console: Console) -> Books:
    """The whole story; the books at its end."""
    books = Books()
    sent, drained = threading.Event(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="twinbus-demo-") as directory:
        broker = BrokerChild(Path(directory) / "data")
        try:
            ready_s = broker.start()
            console.print(f"broker ready after [bold]{ready_s:.2f} s[/]; the Azure SDK sends")
            with running(receive_orders, broker, books, drained):
                with running(send_orders, broker, books, sent):
                    for round_number in range(1, KILLS + 1):
                        time.sleep(SECONDS_BETWEEN_KILLS)
                        _kill_and_restart(broker, books, console, round_number)
                    time.sleep(SECONDS_BETWEEN_KILLS)
                    sent.set()
                console.print("sender stopped; draining the queue")
                drained.set()
        finally:
            broker.close()
    return books


def _kill_and_restart(
    broker: BrokerChild, books: Books, console: Console, round_number: int
) -> None:
    process_id = broker.kill()
    console.print(
        f"[red]kill -9 {process_id}[/] ({round_number} of {KILLS}) after "
        f"{len(books.acknowledged)} acknowledged, {books.received.total()} received"
    )
    books.restart_s.append(broker.start())
    console.print(f"restarted on the same directory, ready after {books.restart_s[-1]:.2f} s")


def show(books: Books, console: Console) -> None:
    table = Table(title="The books", show_header=False)
    table.add_row("acknowledged by the broker", f"{len(books.acknowledged):,}")
    table.add_row("received", f"{len(books.received):,}")
    table.add_row("received twice (a repeated send or a voided lock)", f"{books.duplicates:,}")
    table.add_row("from nowhere", f"{books.unexpected:,}")
    table.add_row("[bold]lost[/]", f"[bold]{books.lost:,}[/]")
    console.print(table)


def main() -> int:
    console = Console()
    books = run(console)
    show(books, console)
    return 0 if not books.lost and not books.unexpected and books.received else 1


if __name__ == "__main__":
    sys.exit(main())
