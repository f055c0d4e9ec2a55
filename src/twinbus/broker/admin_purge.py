"""Emptying queues and namespaces over HTTP.

    POST /namespaces/{namespace}/queues/{path}/purge   Manage; {"dead_letters", "deferred",
                                                       "scheduled", "dry_run"}, all optional
    POST /namespaces/{namespace}/reset                 Manage; {"keep_entities"}, optional

A subscription is purged under its path ``<topic>/subscriptions/<name>``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from twinbus.broker.admin_requests import json_body
from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.broker import RunningNamespace
from twinbus.errors import ConfigurationError

NamespaceOf = Callable[[Request], RunningNamespace]


def purge_routes(namespace_of: NamespaceOf) -> list[Route]:
    """The routes; ``namespace_of`` refuses whoever may not manage it."""
    desk = PurgeApi(namespace_of)
    return [
        Route(
            "/namespaces/{namespace}/queues/{path:path}/purge",
            desk.purge,
            methods=["POST"],
        ),
        Route("/namespaces/{namespace}/reset", desk.reset, methods=["POST"]),
    ]


class PurgeApi:
    """Answers the requests."""

    def __init__(self, namespace_of: NamespaceOf) -> None:
        self._namespace_of = namespace_of

    async def purge(self, request: Request) -> Response:
        namespace, path = self._namespace_of(request), request.path_params["path"]
        flags = _flags(await json_body(request), _PURGE_FLAGS)
        if not namespace.has_entity(path):
            raise HttpError(
                404,
                f"There is no queue {path[:260]!a}. A subscription is TOPIC/subscriptions/NAME.",
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
                f"{name[:60]!a} has no meaning here", hint=f"Known are {', '.join(defaults)}"
            )
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name} is {value!r:.60}", hint="Use true or false")
    return {**defaults, **values}
