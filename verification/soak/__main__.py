"""``python -m verification.soak --minutes 5``: run the load, watch the broker, drain, judge."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psutil

from twinbus.broker.access.sas import make_token
from twinbus.common.connection_string import parse_connection_string
from verification.soak.plan import NAMESPACE, Plan
from verification.soak.roles import Book, Field, receive, receive_sessions, send, visit
from verification.soak.watch import Sample, Verdict, judge, look_at

LOOK_EVERY_S = 2.0
DRAIN_S_MAX = 120.0
TOKEN_LIFETIME_S = 3_000


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--entities", type=int, default=200)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--rate", type=float, default=600.0, help="messages sent a second, in all")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


@contextmanager
def served(plan: Plan, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Our broker in a process of its own."""
    config = directory / "Config.json"
    config.write_text(plan.config_json())
    command = [sys.executable, "-m", "twinbus", "serve", "--output", "json", "--admin-port", "0"]
    command += ["--data", str(directory / "data"), "--config", str(config)]
    command += ["--namespace", f"{NAMESPACE}:0", "--disk-free-mb", "16"]
    with (directory / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit((directory / "serve.log").read_text())
        yield process, json.loads(line)["namespaces"][NAMESPACE]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def cast_of(field: Field, plan: Plan) -> list[Coroutine[Any, Any, None]]:
    """One coroutine for each connection."""
    senders = plan.connection_count * 45 // 100
    receivers = plan.connection_count - senders
    # These come and go, so they are not among the connections that stay.
    visitors = plan.connection_count // 10
    to, sources = plan.destinations(), [*plan.queues, *plan.subscriptions()]
    field.pause_s *= senders
    cast = [send(field, to[number % len(to)]) for number in range(senders)]
    session_receivers = min(receivers // 5, 4 * len(plan.session_queues)) or 1
    for number in range(session_receivers):
        cast.append(receive_sessions(field, plan.session_queues[number % len(plan.session_queues)]))
    for number in range(max(receivers - session_receivers, len(sources))):
        cast.append(receive(field, sources[number % len(sources)]))
    return cast + [visit(field) for _ in range(visitors)]


async def soak(options: argparse.Namespace, pid: int, served_at: dict[str, Any]) -> bool:
    plan = Plan.of(options.entities, options.connections)
    parsed = parse_connection_string(served_at["connection_string"])
    port, book = served_at["port"], Book()

    def token() -> str:
        return make_token(
            resource=f"sb://localhost:{port}/",
            rule_name=parsed.shared_access_key_name or "",
            key=parsed.shared_access_key or "",
            expires_s=int(time.time()) + TOKEN_LIFETIME_S,
        )

    field = Field(
        port=port,
        token=token,
        plan=plan,
        book=book,
        chance=Random(options.seed),
        pause_s=1 / options.rate,
        stops_sending=asyncio.Event(),
        stops=asyncio.Event(),
    )
    tasks = [asyncio.create_task(work) for work in cast_of(field, plan)]
    samples = await _watch(psutil.Process(pid), options.minutes * 60, book, tasks)
    field.stops_sending.set()
    is_drained = await _drained(book)
    field.stops.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    return _report(plan, book, samples, is_drained, failures)


async def _watch(
    process: psutil.Process, duration_s: float, book: Book, tasks: list[asyncio.Task[None]]
) -> list[Sample]:
    began_s = time.monotonic()
    samples: list[Sample] = []
    while (at_s := time.monotonic() - began_s) < duration_s:
        await asyncio.sleep(LOOK_EVERY_S)
        samples.append(look_at(process, at_s))
        if len(samples) % 10 == 0:
            _say_progress(at_s, samples[-1], book, tasks)
    return samples


def _say_progress(at_s: float, sample: Sample, book: Book, tasks: list[asyncio.Task[None]]) -> None:
    ended = sum(task.done() for task in tasks)
    print(
        f"{at_s:5.0f} s  {sample.memory_mb:6.1f} MB  {sample.descriptors:4d} descriptors  "
        f"{book.sent.total():8,d} sent  {book.completed.total():8,d} completed  "
        f"{ended} roles ended",
        flush=True,
    )


async def _drained(book: Book) -> bool:
    """Whether everything that was promised was completed in the end."""
    deadline_s = time.monotonic() + DRAIN_S_MAX
    while time.monotonic() < deadline_s:
        await asyncio.sleep(0.5)
        if all(book.completed[name] >= count for name, count in book.promised.items()):
            return True
    return False


def _report(
    plan: Plan,
    book: Book,
    samples: list[Sample],
    is_drained: bool,
    failures: list[BaseException],
) -> bool:
    verdict: Verdict = judge(samples)
    lost = sum(max(0, count - book.completed[name]) for name, count in book.promised.items())
    repeated = book.completed.total() - book.promised.total() + lost
    print(f"entities      {plan.entity_count}")
    print(f"connections   {plan.connection_count} at a time")
    print(
        f"sent          {book.sent.total():,} messages, {book.promised.total():,} copies promised"
    )
    print(f"completed     {book.completed.total():,} (lost {lost}, repeated {repeated})")
    print(f"given back    {book.abandoned:,}; sessions {book.sessions:,}; visits {book.visits:,}")
    print(f"memory        {verdict.memory_mb_before:.1f} MB -> {verdict.memory_mb_after:.1f} MB")
    print(f"descriptors   {verdict.descriptors_before:.0f} -> {verdict.descriptors_after:.0f}")
    for trouble, count in book.troubles.items():
        print(f"note          {trouble}: {count}")
    for failure in failures[:5]:
        print(f"failure       {type(failure).__name__}: {failure}")
    is_good = verdict.is_flat and is_drained and not lost and not failures
    print("soak: flat, nothing lost" if is_good else "soak: FAILED")
    return is_good


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    plan = Plan.of(options.entities, options.connections)
    scratch = tempfile.TemporaryDirectory(prefix="twinbus-soak-", dir=os.environ.get("SOAK_DIR"))
    with scratch as directory, served(plan, Path(directory)) as (process, served_at):
        is_good = asyncio.run(soak(options, process.pid, served_at))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
