"""How many connections the descriptors of a process are enough for.

A connection needs one descriptor. A process that runs out of them can neither accept a client nor
open a file, so there are never more connections than descriptors.

Rule 1: whoever serves raises the soft limit of its process to the hard one, and says what it got.
Rule 2: what is too little is shared out: a part for the files of the broker, an eighth at most for
        strangers, and the rest for clients, evenly among the namespaces.
Rule 3: what is left beside all of them may keep evicted strangers open (broker/listener/tarpit.py).
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
# Where descriptors are left, a tarpit has so many times the places of strangers.
TARPIT_SHARE: Final = 16
CONNECTIONS_MIN: Final = 8


def raise_descriptor_limit() -> int | None:
    """Have as many descriptors as the system allows; how many those are, None for no limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # macOS says "unlimited" and means less; what there is stays.
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
