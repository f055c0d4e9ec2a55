"""A door whose broker is behind with the strangers that it has."""

from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace
from typing import Any

from twinbus.broker.listener.listeners import BEHIND_S_MAX, Listener, bind


async def test_newcomers_wait_while_the_broker_is_behind_and_not_for_ever() -> None:
    """M13: a stranger that has sent something has its turn first; one that stays behind does not
    keep newcomers out."""
    came: list[float] = []
    slots = SimpleNamespace(is_behind=True, is_pressed=True)

    def accept(connection: socket.socket, *, must_be_tls: bool) -> None:
        came.append(time.monotonic())
        connection.close()

    reception: Any = SimpleNamespace(slots=slots, accept=accept)
    door = Listener(reception, await bind("127.0.0.1", 0))
    try:
        began_s = time.monotonic()
        with socket.create_connection(("127.0.0.1", door.port)):
            while not came:
                await asyncio.sleep(0.001)
        assert came[0] - began_s >= BEHIND_S_MAX * 0.9
        slots.is_behind = False
        with socket.create_connection(("127.0.0.1", door.port)):
            began_s = time.monotonic()
            while len(came) < 2:
                await asyncio.sleep(0.001)
        assert came[1] - began_s < 5.0
    finally:
        door.close()
