"""Where a backlog message may be brought: the destination is data from a message (Y6).

Whoever may send to a backlog queue writes ``x-ms-path``, and the syphon would spend its own
rights on it. So a destination is a plain entity of the one primary, on the list, or nothing.

    no host, no scheme, no ``$...``, no ``..``    entity_path.py refuses what is not a plain name
    no backlog queue of any pair                  messages would go round in circles
    on the list of patterns                       compared in the canonical form

Rule 1: what is returned is canonical (lower case); ``Orders`` and ``orders`` are one queue.
Rule 2: a destination may itself lead to a backlog queue, by forwarding. A restored message has no
        destination left, so it ends there; where a rule gives it one again its hops are counted
        (envelope_hops.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from twinbus.core.envelope_values import Reason
from twinbus.entity_path import BACKLOG_MARKER, parse_entity_path
from twinbus.errors import InvalidEntityPath
from twinbus.service_errors import EnvelopeError

EVERY_ENTITY: Final = ("*",)


def check_destination(
    path: str, *, allowed: Sequence[str] = EVERY_ENTITY, primary_name: str
) -> str:
    """The canonical path, or EnvelopeError with the reason ``destination-not-allowed``.

    ``allowed`` holds patterns in which ``*`` stands for any text, slashes included, and ``?``
    for one character.
    """
    try:
        canonical = parse_entity_path(path)
    except InvalidEntityPath as error:
        raise _not_allowed(path, primary_name, error.sentence) from error
    if BACKLOG_MARKER in canonical.split("/"):
        raise _not_allowed(path, primary_name, "It is a backlog queue.")
    if not any(fnmatchcase(canonical, pattern.lower()) for pattern in allowed):
        raise _not_allowed(path, primary_name, "It is not on the list of allowed destinations.")
    return canonical


def _not_allowed(path: str, primary_name: str, why: str) -> EnvelopeError:
    return EnvelopeError(
        reason=Reason.DESTINATION_NOT_ALLOWED,
        description=f"{path[:80]!a} is no destination on {primary_name!r}: {why}",
    )
