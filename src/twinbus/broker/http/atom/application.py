"""One namespace as an ASGI application: the administration protocol at "/".

    application = namespace_application(running_namespace)

Rule 1: the host is checked first, then the token, then everything else: a client without a token
        does not even learn which entities exist.
Rule 2: every response is one XML document with a status that the official clients expect; an error
        is ``<Error>`` with a sentence.
Rule 3: nothing is for a browser: no CORS headers, no sniffing, no framing, no cache.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from twinbus.broker.faults.http_injection import find_injected_error
from twinbus.broker.http.atom.handlers import (
    delete_entity,
    delete_rule,
    delete_subscription,
    get_entity,
    get_namespace,
    get_rule,
    get_subscription,
    list_queues,
    list_rules,
    list_subscriptions,
    list_topics,
    put_entity,
    put_rule,
    put_subscription,
)
from twinbus.broker.http.atom.requests import Answer, Call, RequestTarget, TargetKind, parse_target
from twinbus.broker.http.atom.xml import error
from twinbus.broker.http.request_checks import (
    SLOT,
    HttpError,
    check_host,
    may_manage,
    parse_version,
    status_of,
    verify_request,
)
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.cost.units import Operation
from twinbus.errors import AccessDenied, TwinbusError

__all__ = ["answer", "answer_for_any", "namespace_application"]

Handler = Callable[[Call], Awaitable[Answer]]

HANDLERS: Final[dict[tuple[TargetKind, str], Handler]] = {
    ("namespace", "GET"): get_namespace,
    ("queues", "GET"): list_queues,
    ("topics", "GET"): list_topics,
    ("entity", "GET"): get_entity,
    ("entity", "PUT"): put_entity,
    ("entity", "DELETE"): delete_entity,
    ("subscriptions", "GET"): list_subscriptions,
    ("subscription", "GET"): get_subscription,
    ("subscription", "PUT"): put_subscription,
    ("subscription", "DELETE"): delete_subscription,
    ("rules", "GET"): list_rules,
    ("rule", "GET"): get_rule,
    ("rule", "PUT"): put_rule,
    ("rule", "DELETE"): delete_rule,
}
MEDIA_TYPE: Final = "application/atom+xml;charset=utf-8"
ERROR_MEDIA_TYPE: Final = "application/xml;charset=utf-8"
# A response may contain keys, and a browser must never show it as a page.
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


def namespace_application(namespace: RunningNamespace) -> ASGIApp:
    """The administration of one namespace."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            response = await answer(Request(scope, receive), namespace)
            await response(scope, receive, send)

    return application


async def answer_for_any(request: Request, namespaces: Collection[RunningNamespace]) -> Response:
    """The response of the namespace whose key signed the request's token."""
    refusal: TwinbusError = AccessDenied("No namespace is running", hint="Start a namespace")
    for namespace in namespaces:
        try:
            verify_request(request, namespace.access)
        except AccessDenied as error:
            refusal = error
        else:
            return await answer(request, namespace)
    return _refusal(status_of(refusal), str(refusal))


async def answer(request: Request, namespace: RunningNamespace) -> Response:
    """The response of the namespace to a request."""
    if not namespace.faults.has_no_faults:
        entity = request.scope["path"].strip("/").lower()
        injected = await find_injected_error(request, namespace.access, entity)
        if injected is not None:
            return _refusal(injected.status, injected.sentence)
    try:
        status, body = await _answer(request, namespace)
    except (HttpError, TwinbusError) as refusal:
        return _refusal(status_of(refusal), str(refusal))
    except ClientDisconnect:
        raise  # The HTTP server handles it.
    except Exception as error:
        namespace.access.violations.note_mistake(
            "an administration request failed",
            error,
            namespace.access.now().monotonic_s,
            address=request.client.host if request.client else "",
            is_stranger=not _is_known(request),
        )
        return _refusal(500, "The broker could not handle this request. See its log.")
    return Response(body, status, HEADERS, media_type=MEDIA_TYPE)


async def _answer(request: Request, namespace: RunningNamespace) -> Answer:
    check_host(request, namespace.access.audience)
    grant = verify_request(request, namespace.access)
    target = parse_target(request.scope["path"])
    if not may_manage(grant, target.segments):
        raise AccessDenied("The Manage claim is missing", hint="Use a key whose access rule has it")
    _count(namespace, target)
    call = Call(request, namespace, target, parse_version(request), grant)
    return await _handler(target, request.method)(call)


def _is_known(request: Request) -> bool:
    """Whether a valid token was sent on the request's connection, now or earlier."""
    slot = request.scope.get("state", {}).get(SLOT)
    return slot is None or slot.is_authenticated


def _count(namespace: RunningNamespace, target: RequestTarget) -> None:
    """C1: every request is metered, with its entity if there is one."""
    path = "/".join(target.segments)
    # A counter for a name that does not exist would stay for ever.
    known = path if namespace.access.catalogue.find(path) is not None else ""
    namespace.access.meter.counter(known, Operation.ADMINISTRATION).add_request()


def _handler(target: RequestTarget, method: str) -> Handler:
    handler = HANDLERS.get((target.kind, method))
    if handler is None:
        known = [verb for kind, verb in HANDLERS if kind == target.kind]
        raise HttpError(405, f"The method must be one of: {', '.join(known) or 'none'}.")
    return handler


def _refusal(status: int, sentence: str) -> Response:
    return Response(error(status, sentence), status, HEADERS, media_type=ERROR_MEDIA_TYPE)
