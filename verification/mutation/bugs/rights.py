"""Bugs of the broker's access control: rights that spread."""

from __future__ import annotations

import pytest

from twinbus.broker.access import sas
from twinbus.broker.http.atom import forward_rights, requests


def cover_what_is_below(patch: pytest.MonkeyPatch) -> None:
    """A longer path is taken for a part of the entity that it begins with."""
    patch.setattr(sas, "owning_entity", lambda segments: segments[0] if segments else "")


def let_every_administrator_forward(patch: pytest.MonkeyPatch) -> None:
    """Manage on the source is enough; nobody asks about the target."""
    patch.setattr(requests, "check_forwards", lambda *_arguments: None)


def take_any_token_as_proof(patch: pytest.MonkeyPatch) -> None:
    """A token that covers the target will do, whatever its rule claims."""
    patch.setattr(
        forward_rights, "_may_send", lambda grant, path: grant.covers(tuple(path.split("/")))
    )


def believe_whatever_is_in_the_header(patch: pytest.MonkeyPatch) -> None:
    """The proof is there, so it must be good."""
    patch.setattr(
        forward_rights,
        "_is_proven",
        lambda request, _namespace, header, _target: header in request.headers,
    )
