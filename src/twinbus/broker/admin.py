"""The HTTP side of a broker: is it well, which queues does it have, and who may use them?

    GET    /health                                     anyone; more with Manage
    GET    /namespaces/{namespace}/queues              Manage
    GET    /namespaces/{namespace}/queues/{path}       Manage
    PUT    /namespaces/{namespace}/queues/{path}       Manage; properties as a JSON object
    PATCH  /namespaces/{namespace}/queues/{path}       Manage; the properties that change
    DELETE /namespaces/{namespace}/queues/{path}       Manage
    GET    /namespaces/{namespace}/operations          Manage; what was done since it started
    GET    /namespaces/{namespace}/rules               Manage; names and claims, never keys
    PUT    /namespaces/{namespace}/rules/{name}        Manage; {"claims": ["Send", ...]}
    DELETE /namespaces/{namespace}/rules/{name}        Manage
    POST   /namespaces/{namespace}/keys/{name}/{which} Manage; a new primary or secondary key
    ...    /namespaces/{namespace}/topics...           Manage; see admin_topics.py

A caller shows the same shared access signature as on AMQP, in the Authorization header, made
out to this host. Errors are one JSON object with a sentence. A key is told once, to whoever
made it, and is in no log. ``/health`` says to a stranger whether the broker is well, and nothing
else: a namespace is named to whoever may manage it. Every other path belongs to the
administration protocol of the stock clients, for the namespace whose key made the token.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from twinbus import __version__
from twinbus.broker.access.claims import AuthorizationRule, Claim
from twinbus.broker.admin_faults import FaultMiddleware, fault_routes
from twinbus.broker.admin_purge import purge_routes
from twinbus.broker.admin_requests import (
    as_json,
    check_access,
    entity_body,
    json_body,
    namespace_of,
    queue_as_json,
)
from twinbus.broker.admin_topics import topic_routes
from twinbus.broker.administration.application import answer_for_any
from twinbus.broker.administration.host_guard import HostCheck
from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.broker import Broker, RunningNamespace, audience_of
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.queue import Queue
from twinbus.broker.stopped import StoppedNamespace
from twinbus.errors import TwinbusError

# An answer that holds a key is for its caller alone, not for a cache on the way.
NOT_KEPT = {"Cache-Control": "no-store"}
# What a queue has for life, or from its broker.
KEPT = {"path", "display_path", "created_at_ms", "updated_at_ms"}


def admin_application(broker: Broker) -> ASGIApp:
    """The HTTP application of a broker."""
    desk = NamespaceApi(broker)
    path = "/namespaces/{namespace}/queues/{path:path}"
    rule = "/namespaces/{namespace}/rules/{name}"
    key = "/namespaces/{namespace}/keys/{name}/{which}"
    application = Starlette(
        routes=[
            Route("/health", desk.health),
            *purge_routes(desk.namespace_of),
            *fault_routes(broker),
            Route("/namespaces/{namespace}/queues", desk.list_queues),
            Route(path, desk.get_queue, methods=["GET"]),
            Route(path, desk.put_queue, methods=["PUT"]),
            Route(path, desk.patch_queue, methods=["PATCH"]),
            Route(path, desk.delete_queue, methods=["DELETE"]),
            Route("/namespaces/{namespace}/operations", desk.operations),
            Route("/namespaces/{namespace}/rules", desk.list_rules),
            Route(rule, desk.put_rule, methods=["PUT"]),
            Route(rule, desk.delete_rule, methods=["DELETE"]),
            Route(key, desk.regenerate_key, methods=["POST"]),
            *topic_routes(desk.namespace_of),
            Route("/{path:path}", desk.administer, methods=["GET", "PUT", "DELETE"]),
        ],
        middleware=[Middleware(FaultMiddleware, broker=broker)],
        exception_handlers={
            HttpError: as_json,
            HTTPException: _not_found,
            TwinbusError: as_json,
        },
    )
    return HostCheck(application, audience_of(broker.options.host))


def _not_found(_request: Request, error: Exception) -> Response:
    """No route fits: the framework's plain text becomes an answer like all others."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    sentence = "There is nothing here under that method and path. Check both."
    return JSONResponse({"error": sentence}, status_code=status)


def _tls_as_json(broker: Broker) -> dict[str, Any]:
    """When the certificate ends; nothing is known before it was first needed."""
    expires_s = broker.tls.expires_s
    if expires_s is None:
        return {"certificate_expires": None}
    return {"certificate_expires": datetime.fromtimestamp(expires_s, UTC).isoformat()}


class NamespaceApi:
    """Answers the requests."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def health(self, request: Request) -> Response:
        is_well = all(each.failure is None for each in self._broker.namespaces.values())
        body: dict[str, Any] = {"status": "ok" if is_well else "failed"}
        namespaces = self._namespaces_for(request)
        if namespaces:
            body["version"] = __version__
            body["tls"] = _tls_as_json(self._broker)
            body["namespaces"] = namespaces
        return JSONResponse(body, status_code=200 if is_well else 503)

    def _namespaces_for(self, request: Request) -> dict[str, Any]:
        """What is said about the namespaces that the caller may manage."""
        namespaces: dict[str, Any] = {}
        if "authorization" not in request.headers:
            return namespaces
        for name, namespace in self._broker.namespaces.items():
            if not _may_manage(request, namespace):
                continue
            failure = namespace.failure
            namespaces[name] = {
                "status": "ok" if failure is None else f"failed: {failure}",
                "port": namespace.port,
                "tls_port": namespace.tls_port,
                "queues": len(namespace.queues()),
                "connections": namespace.connection_count,
                "strangers": namespace.entrance.reception.slots.stranger_count,
                "strangers_evicted": namespace.entrance.reception.slots.evicted_count,
                "store": namespace.access.store_statistics(),
            }
        for name, stopped in self._broker.stopped.items():
            if _may_manage(request, stopped):
                namespaces[name] = {"status": "stopped", "port": stopped.spec.port}
        return namespaces

    async def list_queues(self, request: Request) -> Response:
        namespace = self.namespace_of(request)
        return JSONResponse([queue_as_json(queue) for queue in namespace.queues()])

    async def get_queue(self, request: Request) -> Response:
        return JSONResponse(queue_as_json(self._queue(request)))

    async def put_queue(self, request: Request) -> Response:
        namespace = self.namespace_of(request)
        values = await entity_body(request, namespace)
        description = QueueDescription.from_dict({**values, "path": request.path_params["path"]})
        queue = await namespace.create_queue(description)
        return JSONResponse(queue_as_json(queue), status_code=201)

    async def patch_queue(self, request: Request) -> Response:
        queue = self._queue(request)
        values = await entity_body(request, self.namespace_of(request))
        for name in KEPT.intersection(values):
            raise HttpError(400, f"A queue's {name} cannot be changed. Leave it out.")
        before = queue.description
        known = {item.name: getattr(before, item.name) for item in fields(before)}
        changed = type(before).from_dict({**known, **values})
        await self.namespace_of(request).update_queue(changed)
        return JSONResponse(queue_as_json(queue))

    async def delete_queue(self, request: Request) -> Response:
        queue = self._queue(request)
        await self.namespace_of(request).delete_queue(queue.description.path)
        return Response(status_code=204)

    async def operations(self, request: Request) -> Response:
        books = self.namespace_of(request).access.metering
        totals = [
            {"entity": each.entity, "operation": each.operation, **each.total()._asdict()}
            for each in books.meter
        ]
        return JSONResponse(
            {"run": books.run, "unwritten_units": books.meter.unwritten_units, "totals": totals}
        )

    async def administer(self, request: Request) -> Response:
        """The administration protocol of the stock clients; see ``administration``."""
        return await answer_for_any(request, self._broker.namespaces.values())

    # -- access rules ---------------------------------------------------------------------

    async def list_rules(self, request: Request) -> Response:
        rules = self.namespace_of(request).access.rules
        return JSONResponse([{"name": rule.name, "claims": rule.claims.names()} for rule in rules])

    async def put_rule(self, request: Request) -> Response:
        namespace, name = self.namespace_of(request), request.path_params["name"]
        claims = _claims(await json_body(request))
        if namespace.access.rules.find(name) is not None:
            raise HttpError(409, f"The access rule {name!r} exists already. Delete it first.")
        rule = namespace.add_rule(name, claims)
        body = {
            "name": rule.name,
            "claims": rule.claims.names(),
            "primary_key": rule.primary_key,
            "secondary_key": rule.secondary_key,
        }
        return JSONResponse(body, status_code=201, headers=NOT_KEPT)

    async def delete_rule(self, request: Request) -> Response:
        namespace = self.namespace_of(request)
        namespace.remove_rule(self._rule(namespace, request).name)
        return Response(status_code=204)

    async def regenerate_key(self, request: Request) -> Response:
        namespace = self.namespace_of(request)
        rule, which = self._rule(namespace, request), request.path_params["which"]
        if which not in ("primary", "secondary"):
            raise HttpError(404, "A rule has a primary and a secondary key. Name one of the two.")
        body = {
            "name": rule.name,
            "which": which,
            "key": namespace.regenerate_key(rule.name, which),
        }
        return JSONResponse(body, headers=NOT_KEPT)

    def _rule(self, namespace: RunningNamespace, request: Request) -> AuthorizationRule:
        name = request.path_params["name"]
        rule = namespace.access.rules.find(name)
        if rule is None:
            raise HttpError(404, f"There is no access rule {name[:60]!a}. List them first.")
        return rule

    # -- what a request is about ----------------------------------------------------------

    def _queue(self, request: Request) -> Queue:
        path = request.path_params["path"]
        queue = self.namespace_of(request).queue(path)
        if queue is None:
            raise HttpError(404, f"There is no queue {path[:260]!r}. List them first.")
        return queue

    def namespace_of(self, request: Request) -> RunningNamespace:
        return namespace_of(self._broker, request)


def _may_manage(request: Request, namespace: RunningNamespace | StoppedNamespace) -> bool:
    try:
        check_access(request, namespace)
    except HttpError:
        return False
    return True


def _claims(values: dict[str, Any]) -> Claim:
    names = values.get("claims")
    if set(values) != {"claims"} or not isinstance(names, list):
        raise HttpError(400, 'The body must be {"claims": [...]} and nothing else.')
    if not all(isinstance(name, str) for name in names):
        raise HttpError(400, "A claim must be text. Use Send, Listen or Manage.")
    return Claim.from_names(names)
