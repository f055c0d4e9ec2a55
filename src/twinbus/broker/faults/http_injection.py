"""What a fault does to an administration request (rules F1 and F5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request

from twinbus.broker.faults.degraded_connection import reset

if TYPE_CHECKING:
    from twinbus.broker.faults.registry import ActiveFault
    from twinbus.broker.namespace.namespace import Namespace


class InjectedHttpError(NamedTuple):
    """The error that is returned instead of a response, if the client is still connected."""

    status: int
    sentence: str


async def find_injected_error(
    request: Request, namespace: Namespace, entity: str
) -> InjectedHttpError | None:
    """The error of a fault that affects the request; None: handle it, perhaps after a delay."""
    address = "" if request.client is None else f"{request.client.host}:{request.client.port}"
    for active in namespace.fault_effects.network.administration_faults(address):
        active.hit_count += 1
        found = await _out_of_contact(active, request)
        if found is not None:
            return found
    active_fault = namespace.faults.fires("cannot-manage", entity)
    if active_fault is None:
        return None
    if active_fault.fault.how == "timeout":
        await _until_gone(request)
    return InjectedHttpError(active_fault.fault.http_status or 500, _sentence(active_fault))


async def _out_of_contact(active: ActiveFault, request: Request) -> InjectedHttpError | None:
    match active.fault.how:
        case "gateway-error":
            return InjectedHttpError(502, _sentence(active))
        case "slow":
            await asyncio.sleep(active.latency_s())
            return None
        case "refuse" | "reset":
            _hang_up(request)
        case _:
            await _until_gone(request)
    return InjectedHttpError(503, _sentence(active))


def _sentence(active: ActiveFault) -> str:
    return f"Fault {active.id} is active: {active.fault.kind}. Clear it."


async def _until_gone(request: Request) -> None:
    """Wait without a response until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _hang_up(request: Request) -> None:
    # The server does not pass its transport on, but ``receive`` is a method of the object that
    # has it.
    transport = getattr(getattr(request.receive, "__self__", None), "transport", None)
    if transport is not None:
        reset(transport)
