"""The administration in JSON: health, entities, access rules, purge and reset.

    GET    /health                                     no token; more with Manage
    GET    /namespaces/{namespace}/queues              Manage
    GET    /namespaces/{namespace}/queues/{path}       Manage
    PUT    /namespaces/{namespace}/queues/{path}       Manage; properties as a JSON object
    PATCH  /namespaces/{namespace}/queues/{path}       Manage; the properties that change
    DELETE /namespaces/{namespace}/queues/{path}       Manage
    GET    /namespaces/{namespace}/operations          Manage; operations since it started
    GET    /namespaces/{namespace}/rules               Manage; names and claims, never keys
    PUT    /namespaces/{namespace}/rules/{name}        Manage; {"claims": ["Send", ...]}
    DELETE /namespaces/{namespace}/rules/{name}        Manage
    POST   /namespaces/{namespace}/keys/{name}/{which} Manage; a new primary or secondary key
    POST   /namespaces/{namespace}/queues/{path}/purge Manage; {"dead_letters", "deferred",
                                                       "scheduled", "dry_run"}, all optional
    POST   /namespaces/{namespace}/reset               Manage; {"keep_entities"}, optional
    GET    /namespaces/{namespace}/topics              Manage, as for all that follow
           /namespaces/{namespace}/topics/{topic}                              GET, PUT, DELETE
           /namespaces/{namespace}/topics/{topic}/subscriptions                GET: a list
           /namespaces/{namespace}/topics/{topic}/subscriptions/{name}         GET, PUT, DELETE
           /namespaces/{namespace}/topics/{topic}/subscriptions/{name}/rules   GET: a list
           /namespaces/{namespace}/topics/{topic}/subscriptions/{name}/rules/{rule}
                                                                               GET, PUT, DELETE

A subscription is purged under its path ``<topic>/subscriptions/<name>``. The properties of a new
subscription may contain ``rules``, a list of rules; without it every message matches. A rule is
``{"filter": {"kind": "sql", "expression": "..."}, "action": ...}``.

Rule 1: a client sends the same shared access signature as on AMQP, in the Authorization header and
        signed for this host. Errors are one JSON object with a sentence.
Rule 2: a key is returned once, to the client that created it, and is in no log.
Rule 3: without a token ``/health`` returns only whether the broker works; a namespace is listed for
        clients with its Manage claim.
Rule 4: every other path belongs to the administration protocol of the official clients, for the
        namespace whose key signed the token.
"""

from __future__ import annotations

from collections.abc import Callable
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
from twinbus.broker.access.rules import AuthorizationRule, Claim
from twinbus.broker.broker import Broker
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import RuleDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.http.atom.application import answer_for_any
from twinbus.broker.http.fault_api import FaultMiddleware, fault_routes
from twinbus.broker.http.json_requests import (
    as_json,
    check_access,
    entity_body,
    json_body,
    namespace_of,
    queue_as_json,
)
from twinbus.broker.http.request_checks import HostCheck, HttpError
from twinbus.broker.namespace.catalogue_plan import find_rule
from twinbus.broker.running_namespace import RunningNamespace, StoppedNamespace, audience_of
from twinbus.errors import ConfigurationError, TwinbusError

NamespaceOf = Callable[[Request], RunningNamespace]


def purge_routes(namespace_of: NamespaceOf) -> list[Route]:
    """The routes; ``namespace_of`` raises unless the client may manage the namespace."""
    api = PurgeApi(namespace_of)
    return [
        Route(
            "/namespaces/{namespace}/queues/{path:path}/purge",
            api.purge,
            methods=["POST"],
        ),
        Route("/namespaces/{namespace}/reset", api.reset, methods=["POST"]),
    ]


class PurgeApi:
    """Handlers of purge and reset."""

    def __init__(self, namespace_of: NamespaceOf) -> None:
        self._namespace_of = namespace_of

    async def purge(self, request: Request) -> Response:
        namespace, path = self._namespace_of(request), request.path_params["path"]
        flags = _flags(await json_body(request), _PURGE_FLAGS)
        if not namespace.has_entity(path):
            raise HttpError(
                404,
                f"Queue {path[:260]!a} not found. Use TOPIC/subscriptions/NAME for a subscription.",
            )
        purge = namespace.would_purge if flags.pop("dry_run") else namespace.purge
        purged = await purge(path, **flags)
        return JSONResponse(purged._asdict())

    async def reset(self, request: Request) -> Response:
        namespace = self._namespace_of(request)
        flags = _flags(await json_body(request), {"keep_entities": False})
        count = await namespace.reset(**flags)
        return JSONResponse({"entity_count": count, **flags})


_PURGE_FLAGS = {"dead_letters": False, "deferred": True, "scheduled": True, "dry_run": False}


def _flags(values: dict[str, Any], defaults: dict[str, bool]) -> dict[str, bool]:
    for name, value in values.items():
        if name not in defaults:
            raise ConfigurationError(
                f"Unknown option: {name[:60]!a}", hint=f"Use one of: {', '.join(defaults)}"
            )
        if not isinstance(value, bool):
            raise ConfigurationError(
                f"Invalid value for {name}: {value!r:.60}", hint="Use true or false"
            )
    return {**defaults, **values}


Authorised = Callable[[Request], RunningNamespace]


def topic_routes(namespace_of: Authorised) -> list[Route]:
    """The routes; ``namespace_of`` raises unless the client may manage the namespace."""
    api = TopicApi(namespace_of)
    topic = "/namespaces/{namespace}/topics/{topic:path}"
    subscription = topic + "/subscriptions/{subscription}"
    rule = subscription + "/rules/{rule}"
    # The longest path first: the name of a topic may have slashes.
    return [
        Route(rule, api.get_rule, methods=["GET"]),
        Route(rule, api.put_rule, methods=["PUT"]),
        Route(rule, api.delete_rule, methods=["DELETE"]),
        Route(subscription + "/rules", api.list_rules),
        Route(subscription, api.get_subscription, methods=["GET"]),
        Route(subscription, api.put_subscription, methods=["PUT"]),
        Route(subscription, api.delete_subscription, methods=["DELETE"]),
        Route(topic + "/subscriptions", api.list_subscriptions),
        Route("/namespaces/{namespace}/topics", api.list_topics),
        Route(topic, api.get_topic, methods=["GET"]),
        Route(topic, api.put_topic, methods=["PUT"]),
        Route(topic, api.delete_topic, methods=["DELETE"]),
    ]


def topic_as_json(topic: Topic) -> dict[str, Any]:
    """A topic's properties and counts."""
    return {**queue_as_json(topic), "subscription_count": len(topic.subscriptions)}


def subscription_as_json(subscription: Subscription) -> dict[str, Any]:
    """A subscription's properties, counts and rules."""
    rules = [rule.to_dict() for rule in subscription.rules]
    return {**queue_as_json(subscription), "rules": rules}


class TopicApi:
    """Handlers of topics, subscriptions and rules."""

    def __init__(self, namespace_of: Authorised) -> None:
        self._namespace = namespace_of

    # -- topics ---------------------------------------------------------------------------

    async def list_topics(self, request: Request) -> Response:
        return JSONResponse([topic_as_json(topic) for topic in self._namespace(request).topics()])

    async def get_topic(self, request: Request) -> Response:
        return JSONResponse(topic_as_json(self._topic(request)))

    async def put_topic(self, request: Request) -> Response:
        namespace, path = self._namespace(request), request.path_params["topic"]
        description = TopicDescription.from_dict({**await json_body(request), "path": path})
        topic = await namespace.create_topic(description)
        return JSONResponse(topic_as_json(topic), status_code=201)

    async def delete_topic(self, request: Request) -> Response:
        path = self._topic(request).description.path
        await self._namespace(request).delete_topic(path)
        return Response(status_code=204)

    def _topic(self, request: Request) -> Topic:
        path = request.path_params["topic"]
        topic = self._namespace(request).topic(path)
        if topic is None:
            raise HttpError(404, f"Topic {path[:260]!r} not found. List the topics first.")
        return topic

    # -- subscriptions --------------------------------------------------------------------

    async def list_subscriptions(self, request: Request) -> Response:
        path = self._topic(request).description.path
        found = self._namespace(request).subscriptions(path)
        return JSONResponse([subscription_as_json(each) for each in found])

    async def get_subscription(self, request: Request) -> Response:
        return JSONResponse(subscription_as_json(self._subscription(request)))

    async def put_subscription(self, request: Request) -> Response:
        topic, name = self._topic(request), request.path_params["subscription"]
        values = await entity_body(request, self._namespace(request))
        rules = _rules(values.pop("rules", None))
        path = f"{topic.description.display_path}/subscriptions/{name}"
        description = SubscriptionDescription.from_dict({**values, "path": path})
        created = await self._namespace(request).create_subscription(description, rules)
        return JSONResponse(subscription_as_json(created), status_code=201)

    async def delete_subscription(self, request: Request) -> Response:
        description = self._subscription(request).description
        topic = request.path_params["topic"]
        name = description.path.rpartition("/")[2]
        await self._namespace(request).delete_subscription(topic, name)
        return Response(status_code=204)

    def _subscription(self, request: Request) -> Subscription:
        topic, name = self._topic(request), request.path_params["subscription"]
        found = topic.subscriptions.get(name.lower())
        if found is None:
            raise HttpError(
                404,
                f"Subscription {name[:60]!r} not found in topic "
                f"{topic.description.display_path!r}. List its subscriptions first.",
            )
        return found

    # -- rules ----------------------------------------------------------------------------

    async def list_rules(self, request: Request) -> Response:
        return JSONResponse([rule.to_dict() for rule in self._subscription(request).rules])

    async def get_rule(self, request: Request) -> Response:
        return JSONResponse(self._rule(request).to_dict())

    async def put_rule(self, request: Request) -> Response:
        """Create the rule, or change it."""
        subscription, name = self._subscription(request), request.path_params["rule"]
        rule = RuleDescription.from_dict({**await json_body(request), "name": name})
        namespace = self._namespace(request)
        where = (request.path_params["topic"], request.path_params["subscription"])
        if rule.key in subscription.rule_ids:
            return JSONResponse((await namespace.update_rule(*where, rule)).to_dict())
        created = await namespace.create_rule(*where, rule)
        return JSONResponse(created.to_dict(), status_code=201)

    async def delete_rule(self, request: Request) -> Response:
        name = self._rule(request).name
        where = (request.path_params["topic"], request.path_params["subscription"])
        await self._namespace(request).delete_rule(*where, name)
        return Response(status_code=204)

    def _rule(self, request: Request) -> RuleDescription:
        subscription, name = self._subscription(request), request.path_params["rule"]
        if name.lower() not in subscription.rule_ids:
            raise HttpError(
                404,
                f"Rule {name[:60]!a} not found in subscription "
                f"{subscription.description.display_path!r}. List its rules first.",
            )
        return find_rule(subscription, name)


def _rules(values: object) -> list[RuleDescription] | None:
    if values is None:
        return None
    if not isinstance(values, list):
        raise HttpError(400, "The property rules must be a list of rules.")
    return [RuleDescription.from_dict(each) for each in values]


# A response with a key must not be stored by a cache.
NOT_KEPT = {"Cache-Control": "no-store"}
# Properties that never change, or that the broker sets.
KEPT = {"path", "display_path", "created_at_ms", "updated_at_ms"}


def admin_application(broker: Broker) -> ASGIApp:
    """The HTTP application of a broker."""
    api = NamespaceApi(broker)
    path = "/namespaces/{namespace}/queues/{path:path}"
    rule = "/namespaces/{namespace}/rules/{name}"
    key = "/namespaces/{namespace}/keys/{name}/{which}"
    application = Starlette(
        routes=[
            Route("/health", api.health),
            *purge_routes(api.namespace_of),
            *fault_routes(broker),
            Route("/namespaces/{namespace}/queues", api.list_queues),
            Route(path, api.get_queue, methods=["GET"]),
            Route(path, api.put_queue, methods=["PUT"]),
            Route(path, api.patch_queue, methods=["PATCH"]),
            Route(path, api.delete_queue, methods=["DELETE"]),
            Route("/namespaces/{namespace}/operations", api.operations),
            Route("/namespaces/{namespace}/rules", api.list_rules),
            Route(rule, api.put_rule, methods=["PUT"]),
            Route(rule, api.delete_rule, methods=["DELETE"]),
            Route(key, api.regenerate_key, methods=["POST"]),
            *topic_routes(api.namespace_of),
            Route("/{path:path}", api.administer, methods=["GET", "PUT", "DELETE"]),
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
    """No route matches: the framework's plain text becomes JSON like all other errors."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    sentence = "No route has this method and path. Check both."
    return JSONResponse({"error": sentence}, status_code=status)


def _tls_as_json(broker: Broker) -> dict[str, Any]:
    """When the certificate expires; None before it was first needed."""
    expires_s = broker.tls.expires_s
    if expires_s is None:
        return {"certificate_expires": None}
    return {"certificate_expires": datetime.fromtimestamp(expires_s, UTC).isoformat()}


class NamespaceApi:
    """Handlers of health, queues and access rules."""

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
        """The state of the namespaces that the client may manage."""
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
                "strangers": namespace.listeners.acceptor.slots.stranger_count,
                "strangers_evicted": namespace.listeners.acceptor.slots.evicted_count,
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
            raise HttpError(400, f"The property {name} of a queue cannot be changed. Remove it.")
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
        metering = self.namespace_of(request).access.metering
        totals = [
            {"entity": each.entity, "operation": each.operation, **each.total()._asdict()}
            for each in metering.meter
        ]
        return JSONResponse(
            {
                "run": metering.run,
                "unwritten_units": metering.meter.unwritten_units,
                "totals": totals,
            }
        )

    async def administer(self, request: Request) -> Response:
        """The administration protocol of the official clients; see ``http.atom``."""
        return await answer_for_any(request, self._broker.namespaces.values())

    # -- access rules ---------------------------------------------------------------------

    async def list_rules(self, request: Request) -> Response:
        rules = self.namespace_of(request).access.rules
        return JSONResponse([{"name": rule.name, "claims": rule.claims.names()} for rule in rules])

    async def put_rule(self, request: Request) -> Response:
        namespace, name = self.namespace_of(request), request.path_params["name"]
        claims = _claims(await json_body(request))
        if namespace.access.rules.find(name) is not None:
            raise HttpError(409, f"Access rule {name!r} already exists. Delete it first.")
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
            raise HttpError(404, f"Key {which[:60]!a} not found. Use primary or secondary.")
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
            raise HttpError(404, f"Access rule {name[:60]!a} not found. List the rules first.")
        return rule

    # -- the target of a request ----------------------------------------------------------

    def _queue(self, request: Request) -> Queue:
        path = request.path_params["path"]
        queue = self.namespace_of(request).queue(path)
        if queue is None:
            raise HttpError(404, f"Queue {path[:260]!r} not found. List the queues first.")
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
        raise HttpError(400, "A claim must be a string. Use Send, Listen or Manage.")
    return Claim.from_names(names)
