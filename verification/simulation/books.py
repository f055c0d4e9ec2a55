"""The books at the end of a day: everything acknowledged is home, once or with an explanation.

I1 no loss      I2 nothing from nowhere      I3 explained duplicates      I6 closed books
S9 liveness     H1 honest errors: an error that is not ambiguous means "it is nowhere"
"""

from __future__ import annotations

from random import Random

from twinbus.failover.backlog_rotation import QueueAffinity
from verification.simulation.application import Factory, Namespaces
from verification.simulation.services import Mail
from verification.simulation.world import World

# Longer than the longest pause of a withdrawn queue.
LONG_S = 120.0


def check_mails(world: World, mails: list[Mail], namespaces: Namespaces) -> None:
    """The promises to those who sent."""
    for mail in mails:
        _check_kept(world, mail)
        _check_copies(world, mail, namespaces)
        _check_honest(world, mail)
    for home in namespaces.homes.values():
        if home.strangers:
            raise world.broken("I2 nothing from nowhere", f"{home.strangers} came to {home.name}")


def _check_kept(world: World, mail: Mail) -> None:
    if mail.acked_at is not None and not mail.home_copies and not mail.buried:
        raise world.broken(
            "I1 no loss", f"{mail.message_id} was acknowledged by {mail.acked_at} and is nowhere"
        )


def _check_copies(world: World, mail: Mail, namespaces: Namespaces) -> None:
    home = namespaces.homes[mail.path]
    if mail.is_forged and (mail.home_copies or not mail.buried):
        raise world.broken("Y4 only poison is buried", f"{mail.message_id} is not where it belongs")
    if mail.home_copies and not mail.is_submitted:
        raise world.broken("I2 nothing from nowhere", f"{mail.message_id} was never sent")
    copies_max = 1 if home.detects_duplicates else 1 + mail.unclear
    if mail.home_copies > copies_max:
        raise world.broken(
            "I3 explained duplicates",
            f"{mail.home_copies} copies of {mail.message_id}, {mail.unclear} unclear answers",
        )
    if mail.acked_at is not None and mail.sender_copies > 1:
        world.seen.add("a message arrived twice, announced")
        if not mail.announced:
            raise world.broken("I3 explained duplicates", f"{mail.message_id}: nobody said so")


def _check_honest(world: World, mail: Mail) -> None:
    if mail.error is None or getattr(mail.error, "is_ambiguous", False) or not mail.sender_copies:
        return
    if not mail.was_cut_off:
        kind = type(mail.error).__name__
        raise world.broken("H1 honest errors", f"{mail.message_id} was stored, {kind} denies it")


def check_backlog(world: World, namespaces: Namespaces) -> None:
    """I6: after a while without faults no backlog queue holds anything."""
    for backlog in namespaces.backlogs.values():
        if backlog.items:
            waiting = [item.mail.message_id for item in backlog.items.values()]
            raise world.broken("I6 closed books", f"{backlog.name} still holds {waiting}")


def check_factory(world: World, factory: Factory) -> None:
    """S9: after a while without faults everything is as it was."""
    if not factory.is_open:
        return
    for path, shadow in factory.watch.shadows.items():
        if shadow.is_away or shadow.is_held or shadow.suspect_s is not None:
            raise world.broken("S9 liveness", f"{path} has not come home")
    later_s, withdrawn = world.now_s + LONG_S, set(factory.watch.withdrawn_s)
    for _ in factory.rotation.queues:
        choice = factory.rotation.choose(QueueAffinity(), later_s, Random(0))
        withdrawn.discard(choice.queue if choice is not None and choice.is_probe else "")
    if withdrawn:
        raise world.broken("S9 liveness", f"{sorted(withdrawn)} would never be tried again")
