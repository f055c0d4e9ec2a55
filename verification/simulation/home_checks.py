"""The checks of what leaves a backlog queue.

Y1 accepted before completed      Y4 only poison is buried
"""

from __future__ import annotations

from verification.simulation.services import Home, Mail
from verification.simulation.world import World


def check_completed(world: World, mail: Mail, homes: dict[str, Home]) -> None:
    """Y1: a message leaves the backlog only when its destination holds it."""
    if not homes[mail.path].holds(mail):
        raise world.broken(
            "Y1 accepted before completed", f"{mail.message_id} was completed and is not home"
        )


def check_buried(
    world: World, mail: Mail, homes: dict[str, Home], reason: str, *, grace_s: float
) -> None:
    """Y4: only what can never be delivered is dead-lettered, and the reason says why."""
    if mail.is_forged:
        world.seen.add("a mover found a message without a destination")
        return
    home = homes[mail.path]
    is_lost = home.gone_s is not None and world.now_s - home.gone_s >= grace_s
    if not mail.is_unwanted and not mail.is_too_large and not is_lost:
        raise world.broken("Y4 only poison is buried", f"{mail.message_id}: {reason}")
    if mail.path not in reason:
        raise world.broken("Y4 only poison is buried", f"{mail.message_id}: no reason given")
    world.seen.add("a mover found poison" if mail.is_unwanted else "a destination was lost")
