"""Topics, subscriptions and rules over HTTP, beside the queues.

    GET    /namespaces/{namespace}/topics                                      Manage
    GET    /namespaces/{namespace}/topics/{topic}                              Manage
    PUT    ...                             properties as a JSON object         Manage
    DELETE ...                                                                 Manage
           /namespaces/{namespace}/topics/{topic}/subscriptions                GET: a list
           /namespaces/{namespace}/topics/{topic}/subscriptions/{name}         GET, PUT, DELETE
           /namespaces/{namespace}/topics/{topic}/subscriptions/{name}/rules   GET: a list
           /namespaces/{namespace}/topics/{topic}/subscriptions/{name}/rules/{rule}

The properties of a new subscription may hold ``rules``, a list of rules; without it every message
matches. A rule is ``{"filter": {"kind": "sql", "expression": "..."}, "action": ...}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from twinbus.broker.admin_requests import entity_body, json_body, queue_as_json
from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.broker import RunningNamespace
from twinbus.broker.catalogue_rules import find_rule
from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.topic import Subscription, Topic
from twinbus.broker.entities.topic_description import SubscriptionDescription, TopicDescription

Authorised = Callable[[Request], RunningNamespace]


def topic_routes(namespace_of: Authorised) -> list[Route]:
    """``namespace_of`` is the namespace of a request whose caller may manage it."""
    desk = TopicApi(namespace_of)
    topic = "/namespaces/{namespace}/topics/{topic:path}"
    subscription = topic + "/subscriptions/{subscription}"
    rule = subscription + "/rules/{rule}"
    # The longest path first: the name of a topic may have slashes.
    return [
        Route(rule, desk.get_rule, methods=["GET"]),
        Route(rule, desk.put_rule, methods=["PUT"]),
        Route(rule, desk.delete_rule, methods=["DELETE"]),
        Route(subscription + "/rules", desk.list_rules),
        Route(subscription, desk.get_subscription, methods=["GET"]),
        Route(subscription, desk.put_subscription, methods=["PUT"]),
        Route(subscription, desk.delete_subscription, methods=["DELETE"]),
        Route(topic + "/subscriptions", desk.list_subscriptions),
        Route("/namespaces/{namespace}/topics", desk.list_topics),
        Route(topic, desk.get_topic, methods=["GET"]),
        Route(topic, desk.put_topic, methods=["PUT"]),
        Route(topic, desk.delete_topic, methods=["DELETE"]),
    ]


def topic_as_json(topic: Topic) -> dict[str, Any]:
    """A topic's properties and counts."""
    return {**queue_as_json(topic), "subscription_count": len(topic.subscriptions)}


def subscription_as_json(subscription: Subscription) -> dict[str, Any]:
    """A subscription's properties, counts and rules."""
    rules = [rule.to_dict() for rule in subscription.rules]
    return {**queue_as_json(subscription), "rules": rules}


class TopicApi:
    """Answers the requests."""

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
            raise HttpError(404, f"There is no topic {path[:260]!r}. List them first.")
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
        made = await self._namespace(request).create_subscription(description, rules)
        return JSONResponse(subscription_as_json(made), status_code=201)

    async def delete_subscription(self, request: Request) -> Response:
        description = self._subscription(request).description
        topic = request.path_params["topic"]
        name = description.path.rpartition("/")[2]
        await self._namespace(request).delete_subscription(topic, name)
        return Response(status_code=204)

    def _subscription(self, request: Request) -> Subscription:
        name = request.path_params["subscription"]
        found = self._topic(request).subscriptions.get(name.lower())
        if found is None:
            raise HttpError(404, f"This topic has no subscription {name[:60]!r}. List them first.")
        return found

    # -- rules ----------------------------------------------------------------------------

    async def list_rules(self, request: Request) -> Response:
        return JSONResponse([rule.to_dict() for rule in self._subscription(request).rules])

    async def get_rule(self, request: Request) -> Response:
        return JSONResponse(self._rule(request).to_dict())

    async def put_rule(self, request: Request) -> Response:
        """Make the rule, or change it."""
        subscription, name = self._subscription(request), request.path_params["rule"]
        rule = RuleDescription.from_dict({**await json_body(request), "name": name})
        namespace = self._namespace(request)
        where = (request.path_params["topic"], request.path_params["subscription"])
        if rule.key in subscription.rule_ids:
            return JSONResponse((await namespace.update_rule(*where, rule)).to_dict())
        made = await namespace.create_rule(*where, rule)
        return JSONResponse(made.to_dict(), status_code=201)

    async def delete_rule(self, request: Request) -> Response:
        name = self._rule(request).name
        where = (request.path_params["topic"], request.path_params["subscription"])
        await self._namespace(request).delete_rule(*where, name)
        return Response(status_code=204)

    def _rule(self, request: Request) -> RuleDescription:
        subscription, name = self._subscription(request), request.path_params["rule"]
        if name.lower() not in subscription.rule_ids:
            raise HttpError(404, f"This subscription has no rule {name[:60]!a}. List them first.")
        return find_rule(subscription, name)


def _rules(values: object) -> list[RuleDescription] | None:
    if values is None:
        return None
    if not isinstance(values, list):
        raise HttpError(400, "rules must be a list of rules.")
    return [RuleDescription.from_dict(each) for each in values]
