"""Which queues a query reads: named by its options, or found by a pattern."""

from __future__ import annotations

from twinbus.errors import ConfigurationError
from twinbus.pairing.open_namespace import NamespaceConnection
from twinbus.spark.connector.options import ReadOptions

__all__ = ["selected_paths"]


async def selected_paths(options: ReadOptions, namespace: NamespaceConnection) -> tuple[str, ...]:
    """Looked up once for each run of a query; a pattern that fits nothing is refused."""
    if options.queue_pattern is None:
        return options.paths
    names = [each.path async for each in namespace.management.list_queues()]
    paths = options.paths_among(names)
    if not paths:
        raise ConfigurationError(
            f"no queue has a name that fits {options.queue_pattern!r}",
            hint="Check queuePattern, and which namespace the options name",
        )
    return paths
