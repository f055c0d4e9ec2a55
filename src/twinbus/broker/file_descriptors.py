"""How many connections the open-file limit of the process allows.

A connection needs one descriptor. A process that runs out of them can neither accept a client nor
open a file, so there are never more connections than descriptors.

Rule 1: `twinbus serve` raises the soft limit of its process to the hard one, and reports it.
Rule 2: too few descriptors are divided: a part for the files of the broker, at most an eighth for
        connections without a token, and the rest for clients, evenly among the namespaces.
Rule 3: descriptors that are left may keep evicted connections open (broker/listener/tarpit.py).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final

from twinbus.broker.options import BrokerOptions
from twinbus.errors import ConfigurationError

__all__ = ["fit_connections", "raise_descriptor_limit"]

# Libraries, pipes, listeners, logs; and the store of a namespace with its log and its threads.
RESERVED: Final = 96
RESERVED_PER_NAMESPACE: Final = 16
STRANGERS_SHARE: Final = 8
# If descriptors are left, the tarpit has this many times strangers_max places.
TARPIT_SHARE: Final = 16
CONNECTIONS_MIN: Final = 8


def raise_descriptor_limit() -> int | None:
    """Raise the limit of open files to the maximum; returns it, or None for no limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # macOS reports "unlimited" and allows less; the limit stays as it is.
    return None if soft == resource.RLIM_INFINITY else soft


def fit_connections(
    options: BrokerOptions, descriptor_max: int | None, namespace_count: int
) -> BrokerOptions:
    """The options with no more connections than there are descriptors for."""
    tarpit_max = TARPIT_SHARE * options.strangers_max
    if descriptor_max is None:
        return replace(options, tarpit_max=tarpit_max)
    ports = namespace_count + (options.admin_port is not None)
    free = descriptor_max - RESERVED - RESERVED_PER_NAMESPACE * namespace_count
    left = free - namespace_count * options.connections_max - ports * options.strangers_max
    if left >= 0:
        return replace(options, tarpit_max=min(tarpit_max, left // max(1, ports)))
    share = max(CONNECTIONS_MIN, free // STRANGERS_SHARE // max(1, ports))
    strangers_max = min(options.strangers_max, share)
    connections_max = min(
        options.connections_max, (free - strangers_max * ports) // max(1, namespace_count)
    )
    if connections_max < min(CONNECTIONS_MIN, options.connections_max):
        raise ConfigurationError(
            f"The limit of {descriptor_max} open files is too low for a broker",
            hint="Raise the limit with `ulimit -n`, or with LimitNOFILE in a systemd unit",
        )
    return replace(options, strangers_max=strangers_max, connections_max=connections_max)
