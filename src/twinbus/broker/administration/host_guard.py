"""What stands between our HTTP and browsers that somebody else's page is open in.

Rule 1: a web page can point a name of its own at this machine (DNS rebinding) and then read what
        is served here as if it were its own. The Host header still says that name: refused.
Rule 2: no answer is to be taken for anything but what its type says.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twinbus.broker.access.sas import Audience
from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.administration.requests import check_host

__all__ = ["HostCheck"]


class HostCheck:
    """Stands before an application and lets in whoever asks for one of our names."""

    def __init__(self, application: ASGIApp, audience: Audience) -> None:
        self._application = application
        self._audience = audience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_typed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
            await send(message)

        application = self._application
        if scope["type"] == "http":
            try:
                check_host(Request(scope), self._audience)
            except HttpError as refusal:
                application = JSONResponse({"error": str(refusal)}, status_code=refusal.status)
        await application(scope, receive, send_typed)
