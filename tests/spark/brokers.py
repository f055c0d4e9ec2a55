"""Two brokers in their own processes, and files with their connection strings."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from tests.support.broker_process import BrokerProcess
from tests.support.mover.brokers import Pair
from twinbus.spark.connection_refs import NamespaceRef


class SparkPair(Pair):
    """A primary and a secondary that processes of Spark find by file."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.primary_file = directory / "primary.connection"
        self.secondary_file = directory / "secondary.connection"

    def start(self) -> Self:
        super().start()
        secret_file(self.primary_file, self.primary)
        secret_file(self.secondary_file, self.secondary)
        return self

    @property
    def primary_ref(self) -> NamespaceRef:
        return NamespaceRef.of_file(self.primary_file)

    @property
    def secondary_ref(self) -> NamespaceRef:
        return NamespaceRef.of_file(self.secondary_file)


def secret_file(path: Path, broker: BrokerProcess) -> None:
    """A file with a connection string, for its owner's eyes."""
    path.touch(mode=0o600)
    path.write_text(broker.connection_string + "\n")
