"""The administration of one namespace over HTTP.

    client = AdministrationClient.from_connection_string(parsed)
    queue = await client.get_queue("orders")           # None if it does not exist
    async for queue in client.list_queues("orders/"): ...

Rule 1: reading an entity that does not exist returns None, deleting it raises EntityNotFound.
Rule 2: a token is issued for the namespace; with a connection string for one entity, for that
        entity in requests about it, because its key may be valid for nothing else.
Rule 3: the next page is requested by count; a URL in a response is never followed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from twinbus.common.connection_string import ConnectionString
from twinbus.common.entity_path import parse_entity_path
from twinbus.drivers.administration.entities import (
    NamespaceInfo,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from twinbus.drivers.administration.entity_xml import (
    QUEUE,
    SERVICE_BUS,
    SUBSCRIPTION,
    TOPIC,
    AccessRule,
    ParsedEntry,
    Shape,
    parse_access_rules,
    parse_namespace,
    parse_page,
    set_key,
    set_status,
    update_xml,
)
from twinbus.drivers.administration.http_client import (
    AdministrationEndpoint,
    HttpAnswer,
    error_for,
    exchange,
)
from twinbus.drivers.administration.rule_xml import RULE, RuleProperties, parse_rule, rule_xml
from twinbus.drivers.credentials import Credential, credential_in
from twinbus.errors import (
    EntityNotFound,
    OperationTimeout,
    ServiceError,
    ServiceInternalError,
)

__all__ = ["AdministrationClient", "ReachabilityProbe"]

API_VERSION: Final = "2021-05"
"""The oldest version with everything used here; Azure and our broker both support it."""
DEFAULT_TIMEOUT_S: Final = 60.0
PAGE_SIZE: Final = 100
"""The service returns at most this many at once."""
# A namespace has at most 10,000 entities of a kind. A server that returns more pages than they need
# would keep us busy forever.
PAGES_MAX: Final = 1_000

FORWARD_TO: Final = f"{{{SERVICE_BUS}}}ForwardTo"
FORWARD_DEAD_TO: Final = f"{{{SERVICE_BUS}}}ForwardDeadLetteredMessagesTo"
_FORWARD_DEAD: Final = "forward_dead_lettered_messages_to"
# The header for the token of the target, by kind of forward.
_FORWARD_HEADERS: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    _FORWARD_DEAD: "ServiceBusDlqSupplementaryAuthorization",
}
_XML: Final = {"Content-Type": "application/atom+xml"}
_AnyProperties = QueueProperties | TopicProperties | SubscriptionProperties


@dataclass(frozen=True, slots=True)
class ReachabilityProbe:
    """The response of a namespace to a probe."""

    status: int
    clock_ahead_s: float | None
    """How far its clock is ahead of ours; None when the response has no time."""


class AdministrationClient:
    """One namespace. It holds no connection between calls, so there is nothing to close."""

    def __init__(
        self,
        endpoint: AdministrationEndpoint,
        credential: Credential,
        *,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        entity_path: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.credential = credential
        self._entity_path = entity_path
        self._tls = endpoint.tls_context(ca_file)
        self._timeout_s = timeout_s

    @classmethod
    def from_connection_string(
        cls,
        parsed: ConnectionString,
        *,
        administration_port: int | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> AdministrationClient:
        endpoint = AdministrationEndpoint.of(parsed, administration_port=administration_port)
        return cls(
            endpoint,
            credential_in(parsed),
            ca_file=ca_file,
            timeout_s=timeout_s,
            entity_path=parsed.entity_path,
        )

    # -- the namespace --------------------------------------------------------------------

    async def check_reachable(self) -> ReachabilityProbe:
        """Whether the namespace responds, and its clock; requires no claim."""
        asked_s = time.time()
        answer = await self._exchange("GET", "/$namespaceinfo")
        answered_s = time.time()
        return ReachabilityProbe(answer.status, _clock_ahead_s(answer, (asked_s + answered_s) / 2))

    async def namespace_info(self) -> NamespaceInfo:
        return parse_namespace(await self._request("read", "namespace", "", "/$namespaceinfo"))

    # -- queues ---------------------------------------------------------------------------

    async def get_queue(self, path: str) -> QueueProperties | None:
        entry = await self._read_entry(QUEUE.element, "queue", path, f"/{_quoted(path)}")
        return None if entry is None else _queue(entry, path)

    async def list_queues(self, prefix: str = "") -> AsyncGenerator[QueueProperties, None]:
        """Every queue whose path starts with the prefix, ignoring case."""
        async for entry in self._list(QUEUE.element, "queues", "", "/$Resources/queues"):
            if entry.title.lower().startswith(prefix.lower()):
                yield _queue(entry, entry.title)

    async def create_queue(self, queue: QueueProperties) -> QueueProperties:
        """Create it; raises EntityExists when any entity has this path."""
        entry = await self._create(QUEUE, "queue", queue.path, f"/{_quoted(queue.path)}", queue)
        return _queue(entry, queue.path)

    async def delete_queue(self, path: str) -> None:
        await self._request("delete", "queue", path, f"/{_quoted(path)}", method="DELETE")

    async def set_queue_status(self, path: str, status: str) -> None:
        """Enable or disable sending or receiving; everything else stays as it is."""
        entry = await self._read_existing(path, (QUEUE.element,))
        set_status(entry.described, status)
        await self._change(path, entry)

    # -- access rules ---------------------------------------------------------------------

    async def access_rules(self, path: str) -> list[AccessRule]:
        """The access rules of a queue or topic, with their keys; not those of the namespace."""
        entry = await self._read_existing(path, (QUEUE.element, TOPIC.element))
        return parse_access_rules(entry.described)

    async def set_access_key(self, path: str, rule: str, which: str, key: str) -> None:
        """Set the ``primary`` or ``secondary`` key of an access rule."""
        entry = await self._read_existing(path, (QUEUE.element, TOPIC.element))
        if not set_key(entry.described, rule, which, key):
            raise EntityNotFound(
                f"Access rule {rule!r} not found in {path!r}",
                path=path,
                hint="Check the name of the access rule",
            )
        await self._change(path, entry)

    # -- topics ---------------------------------------------------------------------------

    async def get_topic(self, path: str) -> TopicProperties | None:
        entry = await self._read_entry(TOPIC.element, "topic", path, f"/{_quoted(path)}")
        return None if entry is None else _topic(entry, path)

    async def list_topics(self, prefix: str = "") -> AsyncIterator[TopicProperties]:
        """Every topic whose path starts with the prefix, ignoring case."""
        async for entry in self._list(TOPIC.element, "topics", "", "/$Resources/topics"):
            if entry.title.lower().startswith(prefix.lower()):
                yield _topic(entry, entry.title)

    async def create_topic(self, topic: TopicProperties) -> TopicProperties:
        entry = await self._create(TOPIC, "topic", topic.path, f"/{_quoted(topic.path)}", topic)
        return _topic(entry, topic.path)

    async def delete_topic(self, path: str) -> None:
        await self._request("delete", "topic", path, f"/{_quoted(path)}", method="DELETE")

    # -- subscriptions --------------------------------------------------------------------

    async def get_subscription(self, topic: str, name: str) -> SubscriptionProperties | None:
        where = _subscription_target(topic, name)
        entry = await self._read_entry(
            SUBSCRIPTION.element, "subscription", f"{topic}/{name}", where
        )
        return None if entry is None else _subscription(entry, topic, name)

    async def list_subscriptions(self, topic: str) -> AsyncIterator[SubscriptionProperties]:
        where = f"/{_quoted(topic)}/subscriptions"
        async for entry in self._list(
            SUBSCRIPTION.element, "subscriptions of the topic", topic, where
        ):
            yield _subscription(entry, topic, entry.title)

    async def create_subscription(
        self, subscription: SubscriptionProperties
    ) -> SubscriptionProperties:
        """Create it, with the default rule that matches every message."""
        topic, name = subscription.topic, subscription.name
        where = _subscription_target(topic, name)
        entry = await self._create(
            SUBSCRIPTION, "subscription", f"{topic}/{name}", where, subscription
        )
        return _subscription(entry, topic, name)

    async def delete_subscription(self, topic: str, name: str) -> None:
        where = _subscription_target(topic, name)
        await self._request("delete", "subscription", f"{topic}/{name}", where, method="DELETE")

    # -- rules ----------------------------------------------------------------------------

    async def list_rules(self, topic: str, subscription: str) -> AsyncIterator[RuleProperties]:
        where = f"{_subscription_target(topic, subscription)}/rules"
        of = f"{topic}/{subscription}"
        async for entry in self._list(RULE, "rules of the subscription", of, where):
            yield parse_rule(entry)

    async def get_rule(self, topic: str, subscription: str, name: str) -> RuleProperties | None:
        where = _rule_target(topic, subscription, name)
        entry = await self._read_entry(RULE, "rule", f"{topic}/{subscription}/{name}", where)
        return None if entry is None else parse_rule(entry)

    async def create_rule(self, topic: str, subscription: str, rule: RuleProperties) -> None:
        """Create it; raises EntityExists when the subscription has a rule with this name."""
        await self._request(
            "create",
            "rule",
            f"{topic}/{subscription}/{rule.name}",
            _rule_target(topic, subscription, rule.name),
            method="PUT",
            headers=_XML,
            body=rule_xml(rule),
        )

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        where = _rule_target(topic, subscription, name)
        await self._request(
            "delete", "rule", f"{topic}/{subscription}/{name}", where, method="DELETE"
        )

    # -- requests -------------------------------------------------------------------------

    async def _read_entry(
        self, element: str, kind: str, path: str, target: str
    ) -> ParsedEntry | None:
        try:
            page = parse_page(await self._request("read", kind, path, target))
        except EntityNotFound:
            return None
        # A topic of that name is not a queue.
        found = [entry for entry in page.entries if entry.kind == element]
        return found[0] if found else None

    async def _read_existing(self, path: str, elements: tuple[str, ...]) -> ParsedEntry:
        page = parse_page(await self._request("read", "entity", path, f"/{_quoted(path)}"))
        for entry in page.entries:
            if entry.kind in elements:
                return entry
        raise EntityNotFound(
            f"Entity {path!r} not found in {self.endpoint.url}",
            path=path,
            hint="Check the name of the entity",
        )

    async def _change(self, path: str, entry: ParsedEntry) -> None:
        forwards = {
            name: entry.described.findtext(element)
            for name, element in (("forward_to", FORWARD_TO), (_FORWARD_DEAD, FORWARD_DEAD_TO))
        }
        forwarding = await self._forward_headers(forwards)
        await self._request(
            "change",
            "entity",
            path,
            f"/{_quoted(path)}",
            method="PUT",
            headers={**_XML, "If-Match": "*", **forwarding},
            body=update_xml(entry.described),
        )

    async def _list(
        self, element: str, kind: str, path: str, target: str
    ) -> AsyncIterator[ParsedEntry]:
        skip = 0
        for _ in range(PAGES_MAX):
            query = f"&$skip={skip}&$top={PAGE_SIZE}"
            page = parse_page(await self._request("list", kind, path, target, query=query))
            for entry in page.entries:
                if entry.kind == element:
                    yield entry
            skip += len(page.entries)
            if not page.has_more or not page.entries:
                return
        raise ServiceInternalError(
            f"The namespace returned more than {PAGES_MAX} pages of {kind}",
            hint="Request a single one by its name",
        )

    async def _create(
        self, shape: Shape, kind: str, path: str, target: str, value: _AnyProperties
    ) -> ParsedEntry:
        forwards = {name: getattr(value, name, None) for name in _FORWARD_HEADERS}
        headers = {**_XML, **await self._forward_headers(forwards)}
        body = await self._request(
            "create", kind, path, target, method="PUT", headers=headers, body=shape.write(value)
        )
        for entry in parse_page(body).entries:
            if entry.kind == shape.element:
                return entry
        raise ServiceInternalError(
            f"The namespace created the {kind} {path!r} but did not return its properties",
            path=path,
        )

    async def _forward_headers(self, forwards: Mapping[str, str | None]) -> dict[str, str]:
        """An entity that forwards needs a token with the Send claim for the target."""
        return {
            header: await self._authorization(self.endpoint.entity_url(target))
            for name, header in _FORWARD_HEADERS.items()
            if (target := forwards.get(name))
        }

    async def _request(
        self,
        verb: str,
        kind: str,
        path: str,
        target: str,
        *,
        method: str = "GET",
        query: str = "",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> bytes:
        answer = await self._exchange(method, target, query=query, headers=headers, body=body)
        if 200 <= answer.status < 300:
            return answer.body
        raise error_for(answer, verb=verb, kind=kind, path=path)

    async def _exchange(
        self,
        method: str,
        target: str,
        *,
        query: str = "",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> HttpAnswer:
        began_s = time.monotonic()
        all_headers = {
            "Authorization": await self._authorization(self._resource(target)),
            **(headers or {}),
        }
        return await exchange(
            self.endpoint,
            self._tls,
            method=method,
            target=f"{target}?api-version={API_VERSION}{query}",
            headers=all_headers,
            body=body,
            timeout_s=self._timeout_s - (time.monotonic() - began_s),
        )

    def _resource(self, target: str) -> str:
        """The resource of the token for a request."""
        if self._entity_path is not None:
            own = f"/{_quoted(self._entity_path)}".lower()
            if target.lower() == own or target.lower().startswith(f"{own}/subscriptions"):
                return self.endpoint.entity_url(self._entity_path)
        return self.endpoint.url

    async def _authorization(self, resource: str) -> str:
        try:
            async with asyncio.timeout(self._timeout_s):
                return (await self.credential.token_for(resource)).http_header
        except ServiceError:
            raise  # The credential's own error.
        except TimeoutError as error:
            raise OperationTimeout(
                f"The credential for {self.endpoint.url} returned no token within "
                f"{self._timeout_s:g} s",
                hint="Check that this machine can reach the identity provider",
            ) from error


def _queue(entry: ParsedEntry, path: str) -> QueueProperties:
    return QueueProperties(path=path, **QUEUE.read(entry.described))


def _topic(entry: ParsedEntry, path: str) -> TopicProperties:
    return TopicProperties(path=path, **TOPIC.read(entry.described))


def _subscription(entry: ParsedEntry, topic: str, name: str) -> SubscriptionProperties:
    return SubscriptionProperties(topic=topic, name=name, **SUBSCRIPTION.read(entry.described))


def _subscription_target(topic: str, name: str) -> str:
    return f"/{_quoted(topic)}/subscriptions/{_quoted(name)}"


def _rule_target(topic: str, subscription: str, name: str) -> str:
    # The default rule of every subscription has a name that no entity can have.
    rule = name if name.lower() == "$default" else _quoted(name)
    return f"{_subscription_target(topic, subscription)}/rules/{rule}"


def _quoted(path: str) -> str:
    parse_entity_path(path)  # Neither "$Resources" nor "../x" is the name of an entity.
    return quote(path, safe="/")


def _clock_ahead_s(answer: HttpAnswer, now_s: float) -> float | None:
    try:
        # The header has whole seconds: on average half of one has passed since.
        remote_s = parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5
    except (KeyError, ValueError, TypeError):
        return None
    return remote_s - now_s
