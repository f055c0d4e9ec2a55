"""What the JSON requests have in common: authorization, body, responses.

Rule 1: without a token nothing is returned, not even which namespaces exist or are stopped.
Rule 2: the claim is checked before the body is read, and again when the body is complete.
Rule 3: errors are those of the administration protocol (request_checks.py), returned as one JSON
        object with a sentence.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from twinbus.broker.access.rules import Claim
from twinbus.broker.broker import Broker
from twinbus.broker.engine.forwarding import own_targets
from twinbus.broker.engine.queue import Queue
from twinbus.broker.http.request_checks import (
    HttpError,
    audience_of,
    check_still_granted,
    status_of,
    verify_request,
)
from twinbus.broker.http.request_gate import BODY_BYTES_MAX
from twinbus.broker.running_namespace import RunningNamespace, StoppedNamespace
from twinbus.errors import AccessDenied, TwinbusError

__all__ = [
    "NEEDS_MANAGE",
    "as_json",
    "check_access",
    "entity_body",
    "json_body",
    "namespace_of",
    "queue_as_json",
]

# The key under which the scope of a request has the grant of its token.
_GRANTED = "twinbus.granted"
# The same error for a namespace that does not exist and for an invalid token.
NEEDS_MANAGE = (
    "A token with the Manage claim is required. Check the name of the namespace and the key."
)


def namespace_of(broker: Broker, request: Request) -> RunningNamespace:
    """The namespace of a request; raises unless it runs and the client may manage it."""
    name = request.path_params["namespace"].lower()
    running = broker.namespaces.get(name)
    if running is not None:
        check_access(request, running)
        return running
    stopped = broker.stopped.get(name)
    if stopped is None:
        raise HttpError(401, NEEDS_MANAGE)
    check_access(request, stopped)
    raise HttpError(409, f"Namespace {name!r} is stopped. Start it first.")


def check_access(request: Request, namespace: RunningNamespace | StoppedNamespace) -> None:
    """Raise unless the client may manage the whole namespace."""
    try:
        grant = verify_request(request, namespace.access)
    except AccessDenied as error:
        raise HttpError(401, str(error)) from error
    if grant.segments or Claim.MANAGE not in grant.claims:
        raise HttpError(
            403, "The Manage claim on the namespace is missing. Use a key whose access rule has it."
        )
    request.scope[_GRANTED] = grant, namespace.access


async def json_body(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body; empty when there is no body (rule 2)."""
    if _GRANTED not in request.scope:
        raise HttpError(401, NEEDS_MANAGE)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise HttpError(413, f"The body must have at most {BODY_BYTES_MAX} bytes.")
    check_still_granted(*request.scope[_GRANTED])
    if not body:
        return {}
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "The body is not valid JSON. Send one JSON object.") from error
    if not isinstance(values, dict):
        raise HttpError(400, "The body must be a JSON object.")
    return values


async def entity_body(request: Request, namespace: RunningNamespace) -> dict[str, Any]:
    """The properties of an entity in a request's body, with the URLs of forwards as paths."""
    return own_targets(await json_body(request), audience_of(request, namespace.access))


def as_json(_request: Request, error: Exception) -> Response:
    """The response to a request that was refused."""
    assert isinstance(error, HttpError | TwinbusError)
    return JSONResponse({"error": str(error)}, status_code=status_of(error))


def queue_as_json(queue: Queue) -> dict[str, Any]:
    """A queue's properties and counts."""
    dead = queue.dead_letters
    return {
        **queue.description.to_public_dict(),
        "active_message_count": queue.active_count,
        "deferred_message_count": queue.deferred_count,
        "scheduled_message_count": queue.scheduled_count,
        "dead_letter_message_count": 0 if dead is None else dead.message_count,
        "locked_message_count": queue.locked_count,
        "size_in_bytes": queue.used_bytes,
    }
