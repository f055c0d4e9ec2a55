"""``twinbus syphon --spool DIR``: serves the backlog of an application that has ended.

Rule 1: one process at a time uses the directory. While the application runs it serves the
        namespace itself, and its connection string file has the address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from twinbus.broker.storage.data_directory import list_namespaces
from twinbus.cli.syphon.summary import spool_file
from twinbus.drivers.embedded import EmbeddedNamespace
from twinbus.errors import ConfigurationError, StoreLocked

__all__ = ["serve_spool"]


@contextmanager
def serve_spool(directory: Path) -> Iterator[None]:
    """Serve the namespace in a data directory, unless its application serves it."""
    namespace = EmbeddedNamespace(_only_name(directory), data_directory=directory)
    try:
        namespace.start()
    except StoreLocked:
        if not spool_file(directory).is_file():
            raise
        typer.echo("twinbus: The application of the spool is running and serves it.", err=True)
        yield
        return
    try:
        yield
    finally:
        namespace.stop()


def _only_name(directory: Path) -> str:
    found = list_namespaces(directory)
    if not found:
        raise ConfigurationError(
            f"Invalid value for --spool: {str(directory)!r:.200} is not the data directory of an "
            "EmbeddedNamespace",
            hint="Use the data_directory of the application",
        )
    if len(found) > 1:
        raise ConfigurationError(
            f"Invalid value for --spool: {str(directory)!r:.200} contains {len(found)} namespaces: "
            f"{', '.join(found)}",
            hint="Serve one with `twinbus serve --data DIR --namespace NAME`, and set "
            "SERVICEBUS_SECONDARY_CONNECTION_STRING",
        )
    return found[0]
