"""Faults, stops and the clock over HTTP.

    GET    /faults/kinds                          no token; every kind with its options
    GET    /namespaces/{namespace}/faults         Manage, as for all that follow
    POST   /namespaces/{namespace}/faults         a fault as a JSON object; returns its id
    DELETE /namespaces/{namespace}/faults         clear all
    GET    /namespaces/{namespace}/faults/{id}
    DELETE /namespaces/{namespace}/faults/{id}    clear one
    GET    /namespaces/{namespace}/subsystems     the subsystem of each entity
    PUT    /namespaces/{namespace}/subsystems     {"orders": "billing"}; null is the default one
    POST   /namespaces/{namespace}/stop           close it; the other namespaces keep running
    POST   /namespaces/{namespace}/start          serve it again
    POST   /clock/advance                         {"seconds": 900}; only with an adjustable clock

No fault affects these routes, so that every fault can be cleared.

Rule 1: all of it can be disabled (BrokerOptions.faults), and is disabled on a broker that other
        machines can reach. A client with a token then gets 403, one without a token the usual 401.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from twinbus.broker.broker import Broker
from twinbus.broker.faults.fault import COMMON_OPTIONS, KINDS, Fault
from twinbus.broker.faults.http_injection import find_injected_error
from twinbus.broker.http.json_requests import NEEDS_MANAGE, check_access, json_body, namespace_of
from twinbus.broker.http.request_checks import HttpError
from twinbus.broker.running_namespace import RunningNamespace, StoppedNamespace
from twinbus.common.clock import AdjustableClock

ALWAYS_REACHED = frozenset({"faults", "subsystems", "stop", "start"})


def fault_routes(broker: Broker) -> list[Route]:
    """The routes of this module."""
    api = FaultApi(broker)
    faults = "/namespaces/{namespace}/faults"
    subsystems = "/namespaces/{namespace}/subsystems"
    return [
        Route("/faults/kinds", api.kinds),
        Route(faults, api.list_faults, methods=["GET"]),
        Route(faults, api.add, methods=["POST"]),
        Route(faults, api.clear, methods=["DELETE"]),
        Route(faults + "/{id}", api.get, methods=["GET"]),
        Route(faults + "/{id}", api.clear, methods=["DELETE"]),
        Route(subsystems, api.list_subsystems, methods=["GET"]),
        Route(subsystems, api.assign, methods=["PUT"]),
        Route("/namespaces/{namespace}/stop", api.stop, methods=["POST"]),
        Route("/namespaces/{namespace}/start", api.start, methods=["POST"]),
        Route("/clock/advance", api.advance, methods=["POST"]),
    ]


class FaultMiddleware:
    """Applies faults to requests before the JSON routes handle them."""

    def __init__(self, app: ASGIApp, broker: Broker) -> None:
        self._app = app
        self._broker = broker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        injected = None
        if scope["type"] == "http":
            running, entity = self._find_target(scope["path"])
            if running is not None and not running.faults.has_no_faults:
                injected = await find_injected_error(
                    Request(scope, receive), running.access, entity
                )
        if injected is None:
            await self._app(scope, receive, send)
        else:
            response = JSONResponse({"error": injected.sentence}, status_code=injected.status)
            await response(scope, receive, send)

    def _find_target(self, path: str) -> tuple[RunningNamespace | None, str]:
        """The namespace and the entity of a request; other requests are not affected by faults."""
        _root, first, *rest = [*path.split("/"), "", ""]
        if first != "namespaces" or rest[1] in ALWAYS_REACHED:
            return None, ""
        entity = "/".join(rest[2:]).strip("/").removesuffix("/purge")
        return self._broker.namespaces.get(rest[0].lower()), entity.lower()


def kinds_as_json() -> list[dict[str, Any]]:
    """Every kind of fault with its summary and options."""
    return [
        {
            "kind": name,
            "summary": kind.summary,
            "options": {
                option: list(value) if isinstance(value, tuple) else value
                for option, value in {**kind.options, **COMMON_OPTIONS}.items()
            },
        }
        for name, kind in KINDS.items()
    ]


class FaultApi:
    """Handlers of the requests."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def kinds(self, _request: Request) -> Response:
        self._check_switched_on()
        return JSONResponse(kinds_as_json())

    # -- faults ---------------------------------------------------------------------------

    async def list_faults(self, request: Request) -> Response:
        return JSONResponse(self._running(request).faults.list())

    async def add(self, request: Request) -> Response:
        registry = self._running(request).faults
        fault = Fault.from_json(await json_body(request))
        fault_id = registry.add(fault)
        # A fault that fires once is over by now.
        over = {**fault.to_json(), "id": fault_id, "phase": "over", "remaining_s": 0.0}
        return JSONResponse(registry.get(fault_id) or over, status_code=201)

    async def get(self, request: Request) -> Response:
        return JSONResponse(self._found(request)[1])

    async def clear(self, request: Request) -> Response:
        running = self._running(request)
        fault_id = None if "id" not in request.path_params else self._found(request)[0]
        cleared = running.faults.clear(fault_id)
        await running.access.fault_effects.network.until_open()
        return JSONResponse({"cleared": cleared})

    def _found(self, request: Request) -> tuple[str, dict[str, Any]]:
        fault_id = request.path_params["id"]
        registry = self._running(request).faults
        found = registry.get(fault_id)
        if found is None:
            raise HttpError(404, f"Fault {fault_id[:80]!a} not found. {registry.describe_names()}.")
        return fault_id, found

    # -- subsystems -----------------------------------------------------------------------

    async def list_subsystems(self, request: Request) -> Response:
        running = self._running(request)
        paths = sorted({queue.description.path for queue in running.access.catalogue.machines()})
        return JSONResponse({path: running.faults.subsystems.of(path) for path in paths})

    async def assign(self, request: Request) -> Response:
        registry = self._running(request).faults
        for path, subsystem in (await json_body(request)).items():
            registry.assign(path, subsystem)
        return await self.list_subsystems(request)

    # -- namespaces -----------------------------------------------------------------------

    async def stop(self, request: Request) -> Response:
        name = self._running(request).name
        await self._broker.stop_namespace(name)
        return JSONResponse({"namespace": name, "status": "stopped"})

    async def start(self, request: Request) -> Response:
        name = request.path_params["namespace"].lower()
        stopped = self._broker.stopped.get(name)
        if stopped is None:
            running = self._running(request)
            raise HttpError(409, f"Namespace {running.name!r} is already running. Stop it first.")
        check_access(request, stopped)
        self._check_switched_on()
        running = await self._broker.start_namespace(name)
        return JSONResponse({"namespace": name, "status": "ok", "port": running.port})

    def _running(self, request: Request) -> RunningNamespace:
        running = namespace_of(self._broker, request)
        self._check_switched_on()
        return running

    def _check_switched_on(self) -> None:
        if not self._broker.options.has_faults:
            raise HttpError(
                403,
                "Faults, namespace stops and clock changes are disabled on this broker. Start it "
                "with --faults.",
            )

    # -- the clock ------------------------------------------------------------------------

    async def advance(self, request: Request) -> Response:
        self._check_any(request)
        self._check_switched_on()
        values = await json_body(request)
        if set(values) != {"seconds"}:
            raise HttpError(400, 'The body must be {"seconds": ...} and nothing else.')
        self._broker.advance(values["seconds"])
        return JSONResponse(self._clock_as_json())

    def _clock_as_json(self) -> dict[str, Any]:
        clock = self._broker.clock
        is_adjustable = isinstance(clock, AdjustableClock)
        return {
            "is_adjustable": is_adjustable,
            "wall_ms": clock.now().wall_ms,
            "advanced_s": clock.advanced_s if isinstance(clock, AdjustableClock) else 0.0,
        }

    def _check_any(self, request: Request) -> None:
        """All namespaces share the clock: the Manage claim on one of them is enough."""
        broker = self._broker
        audiences: list[RunningNamespace | StoppedNamespace] = [*broker.namespaces.values()]
        for audience in (*audiences, *broker.stopped.values()):
            try:
                check_access(request, audience)
            except HttpError:
                continue
            return
        raise HttpError(401, NEEDS_MANAGE)
