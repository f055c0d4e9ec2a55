"""Where messages are forwarded: a URL to the clients, a path of this namespace to us."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from twinbus.broker.access.sas import Audience
from twinbus.broker.administration.refusals import Refused
from twinbus.entity_path import parse_entity_path

__all__ = ["path_of_url", "url_of_path"]


def path_of_url(text: str, audience: Audience) -> str:
    """The canonical path that a forwarding property names; it must be in this namespace."""
    url = _split(text.strip())
    # The port may be any that leads here: the namespace's own, the one for TLS, a mapped one.
    if url.netloc and not audience.known_as(url.hostname).answers_to(url.hostname):
        raise Refused(400, "Messages can be forwarded inside this namespace. Name its own entity.")
    return parse_entity_path(url.path.lstrip("/") if url.netloc else text.strip())


def url_of_path(path: str, endpoint: str) -> str:
    """The path as the service tells it."""
    return f"{endpoint}/{path}"


def _split(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        raise Refused(400, "A forwarding URL must be like sb://<host>/<entity>.") from None
    return url
