"""The libraries through which a namespace can be used, by their names in options and commands.

    servicebus   the official SDK, for Azure, its emulator and our broker (extra ``azure``)
    amqp         our lean client, for throughput

Rule 1: this module loads none of them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from twinbus.errors import ConfigurationError

__all__ = ["DriverName", "check_driver_name"]

DriverName: TypeAlias = Literal["servicebus", "amqp"]


def check_driver_name(name: object, what: str = "driver") -> None:
    """Raise ConfigurationError for anything else; ``what`` is the option that holds it."""
    if name not in get_args(DriverName):
        raise ConfigurationError(
            f"{what} cannot be {name!r:.40}", hint="Use 'amqp' or 'servicebus'"
        )
