"""Everything that runs in the demo, and where its files are.

DIR/east, DIR/west       the brokers' data; east.log and west.log what they said
DIR/logs/east, .../west  what the brokers counted (operations) and saw (audit)
DIR/journal.jsonl        what happened in the pair
DIR/receipts             what the syphon did with each message; DIR/syphon its state
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from twinbus.demo.plan import (
    DESTINATIONS,
    PRIMARY,
    QUEUES,
    SECONDARY,
    SUBSCRIPTIONS,
    TOPIC,
)
from twinbus.errors import ConfigurationError
from twinbus.testing.served import ServedBroker

__all__ = ["Site", "directory_for", "units_in"]

# The demo writes a few megabytes: a disk that is nearly full is no reason to refuse it.
DISK_FREE_MB: Final = 16


class Site:
    """Two brokers in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        self.journal = directory / "journal.jsonl"
        entities = [f"--topic={TOPIC}"]
        entities += [f"--subscription={TOPIC}/{name}" for name in SUBSCRIPTIONS]
        self.primary = self._broker(PRIMARY, QUEUES, entities)
        self.secondary = self._broker(SECONDARY, (), [])

    def _broker(self, name: str, queues: tuple[str, ...], more: list[str]) -> ServedBroker:
        return ServedBroker(
            self.directory / name,
            namespace=name,
            queues=queues,
            arguments=(
                *more,
                *("--audit", "--metering", str(self.logs), "--disk-free-mb", str(DISK_FREE_MB)),
            ),
        )

    @property
    def brokers(self) -> tuple[ServedBroker, ServedBroker]:
        return self.primary, self.secondary

    @property
    def addresses(self) -> dict[str, str]:
        """Connection strings, by namespace."""
        return {broker.namespace: broker.connection_string for broker in self.brokers}

    async def start(self) -> None:
        """Start both brokers at once."""
        await asyncio.gather(*(asyncio.to_thread(broker.start) for broker in self.brokers))

    async def stop(self) -> None:
        """Let both brokers end what they do, and close their logs."""
        await asyncio.gather(*(asyncio.to_thread(broker.stop) for broker in self.brokers))

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()

    async def note_counters(self) -> None:
        """Write down what each broker has counted since it started, in its own words."""
        counted = {
            broker.namespace: await asyncio.to_thread(
                broker.admin, "GET", f"/namespaces/{broker.namespace}/operations"
            )
            for broker in self.brokers
        }
        (self.directory / "counters.json").write_text(json.dumps(counted, indent=1))

    async def waiting(self) -> int:
        """Messages on the primary that nobody has received yet."""
        return await asyncio.to_thread(self._waiting)

    def _waiting(self) -> int:
        count = 0
        for places in DESTINATIONS.values():
            for place in places:
                kind = "topics" if "/" in place else "queues"
                facts = self.primary.admin("GET", f"/namespaces/{PRIMARY}/{kind}/{place}")
                count += facts["active_message_count"]
        return count


@contextmanager
def directory_for(keep: Path | None) -> Iterator[Path]:
    """Where everything is written: a place of the user's, or one that is gone afterwards."""
    if keep is None:
        made = Path(tempfile.mkdtemp(prefix="twinbus-demo-"))
    else:
        made = _kept(keep)
    handler = logging.FileHandler(made / "application.log")
    logger = logging.getLogger("twinbus")
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield made
    finally:
        logger.propagate = before
        logger.removeHandler(handler)
        handler.close()
        if keep is None:
            shutil.rmtree(made, ignore_errors=True)


def _kept(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_used = any(directory.iterdir())
    except OSError as error:
        raise ConfigurationError(
            f"--keep {str(directory)!r} cannot be used: {error.strerror}",
            hint="Choose a directory in which you may write",
        ) from error
    if is_used:
        raise ConfigurationError(
            f"--keep {str(directory)!r} is not empty", hint="Choose a new directory"
        )
    return directory.absolute()


def units_in(logs: Path) -> int:
    """The billable operations in the logs of all brokers."""
    lines = {
        (line["run"], line["number"]): int(line["units"])
        for path in logs.glob("*/operations*.jsonl")
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    }
    return sum(lines.values())
