"""The names of the drivers in options and commands.

    servicebus   the official SDK, for Azure, its emulator and our broker (extra ``azure``)
    amqp         our own AMQP client, for throughput

Rule 1: this module imports no driver.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from twinbus.errors import ConfigurationError

__all__ = ["DriverName", "check_driver_name"]

DriverName: TypeAlias = Literal["servicebus", "amqp"]


def check_driver_name(name: object, what: str = "driver") -> None:
    """Raise ConfigurationError for an unknown name; ``what`` is the name of the option."""
    if name not in get_args(DriverName):
        raise ConfigurationError(
            f"Invalid value for {what}: {name!r:.40}", hint="Use 'amqp' or 'servicebus'"
        )
