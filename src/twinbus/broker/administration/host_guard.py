"""Whether a request was meant for us, by the name that it was sent to.

A web page can point a name of its own at this machine (DNS rebinding) and then read what is
served here as if it were its own. The Host header still says that name.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from twinbus.broker.access.sas import Audience
from twinbus.broker.administration.refusals import Refused
from twinbus.broker.administration.requests import check_host

__all__ = ["HostGuard"]


class HostGuard:
    """Stands before an application and lets in whoever asks for one of our names."""

    def __init__(self, application: ASGIApp, audience: Audience) -> None:
        self._application = application
        self._audience = audience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                check_host(Request(scope), self._audience)
            except Refused as refusal:
                response = JSONResponse({"error": str(refusal)}, status_code=refusal.status)
                await response(scope, receive, send)
                return
        await self._application(scope, receive, send)
