"""The cells of the matrix: a token, an operation at an address, and both opinions about it.

    AMQP      links that send and receive, and what a management node does, at every address
    ATOM      the administration protocol, at every path, with forwards and their proofs
    JSON      the routes of our own

Rule 1: every cell is asked of the broker for real. Refused is 401, 403, ``unauthorized-access``, or
        that the address means nothing; whatever else is answered, the caller was let in.
Rule 2: a cell that is let in has its effect, and is put right afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID
from xml.sax.saxutils import escape

from tests.support.wire_client import WireClient
from tests.unit.broker.rights.addresses import ATOM_PATHS, LINK_ADDRESSES, entity, part
from tests.unit.broker.rights.credentials import CLAIMS, DELETED, SCOPES, Shown, key_of, shown
from tests.unit.broker.rights.oracle import (
    NAMESPACE,
    Credential,
    Place,
    may,
    may_administer,
    may_forward,
    may_use_session,
)
from tests.unit.broker.rights.world import SESSIONS, World
from twinbus.amqp.codec.types import Array, Long, Symbol, Timestamp
from twinbus.amqp.delivery_states import Accepted, Released
from twinbus.amqp.events import ConnectionClosed, DeliveryReceived
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Source

__all__ = ["Cell", "amqp_cells", "atom_cells", "forward_cells", "json_cells", "session_cells"]

NOBODY: Final = Credential("no token", frozenset(), "", None, is_good=False)
UNAUTHORIZED: Final = "amqp:unauthorized-access"
KEPT_OUT: Final = frozenset({UNAUTHORIZED, "com.microsoft:argument-error"})


@dataclass(frozen=True)
class Cell:
    """One question, what the broker did, and what the rules say."""

    protocol: str
    who: str
    operation: str
    address: str
    was_let_in: bool
    may: bool

    def complaint(self) -> str | None:
        """What is wrong, if anything is."""
        if self.was_let_in == self.may:
            return None
        kind = "a right too many" if self.was_let_in else "a right too few"
        return f"{kind}: {self.protocol} {self.operation} at {self.address!r} with {self.who}"


# -- AMQP -------------------------------------------------------------------------------------

_NO_LOCK = Array.of(0x98, [UUID(int=7)])
_NO_NUMBER = Array.of(0x81, [Long(999_999)])
_MESSAGE = Message(properties=Properties(message_id="m"), body=b"x")
MANAGEMENT: Final[dict[str, tuple[str, Any]]] = {
    "peek-message": ("Listen", {"from-sequence-number": Long(1), "message-count": 1}),
    "renew-lock": ("Listen", {"lock-tokens": _NO_LOCK}),
    "update-disposition": (
        "Listen",
        {"disposition-status": "completed", "lock-tokens": _NO_LOCK},
    ),
    "receive-by-sequence-number": ("Listen", {"sequence-numbers": _NO_NUMBER}),
    "get-session-state": ("Listen", {"session-id": "a"}),
    "set-session-state": ("Listen", {"session-id": "a", "session-state": b"x"}),
    "renew-session-lock": ("Listen", {"session-id": "a"}),
    "get-message-sessions": (
        "Listen",
        {"skip": 0, "top": 1, "last-updated-time": Timestamp(0)},
    ),
    "schedule-message": (
        "Send",
        {"messages": [{"message-id": "m", "message": _MESSAGE.encode()}]},
    ),
    "cancel-scheduled-message": ("Send", {"sequence-numbers": _NO_NUMBER}),
}
_ADDRESSES: Final = list(LINK_ADDRESSES.items())


def amqp_cells(world: World, token: Shown | None) -> Iterator[Cell]:
    """Every address with one token, on one connection."""
    who = NOBODY if token is None else token.credential
    client = world.connect(token)
    try:
        for address, place in _ADDRESSES:
            if any(isinstance(event, ConnectionClosed) for event in client.events):
                client.close()
                client = world.connect(token)
            yield _cell(who, "send", address, _sends(client, address), may(who, "Send", place))
            got = _receives(world, client, address)
            yield _cell(who, "receive", address, got, may(who, "Listen", place))
            yield from _management_cells(client, who, address, place)
    finally:
        client.close()


def _management_cells(
    client: WireClient, who: Credential, address: str, place: Place | None
) -> Iterator[Cell]:
    node = f"{address}/$management"
    link = client.attach_sender(node)
    is_open = _is_open(client, link)
    may_open = may(who, "Listen", place) or may(who, "Send", place)
    yield _cell(who, "open $management", node, is_open, may_open)
    if not is_open or link.peer.target is None:
        return
    link.detach()
    for name, (claim, body) in MANAGEMENT.items():
        reply = client.manage(address, f"com.microsoft:{name}", body).application_properties
        assert reply is not None
        was_let_in = int(reply["statusCode"]) != 401
        yield _cell(who, name, node, was_let_in, may(who, claim, place))
    # Under another spelling it is the same node, and would answer to these links.
    for used in client._nodes.pop(node):
        used.detach()


def _cell(who: Credential, operation: str, address: str, was_let_in: bool, is_right: bool) -> Cell:
    return Cell("AMQP", who.label, operation, address, was_let_in, is_right)


def _is_open(client: WireClient, link: SenderLink | ReceiverLink) -> bool:
    """Whether a link was not refused for lack of a right, or because it means nothing."""
    terminus = link.peer.target if isinstance(link, SenderLink) else link.peer.source
    return terminus is not None or client.refusal(link) not in KEPT_OUT


def _sends(client: WireClient, address: str) -> bool:
    link = client.attach_sender(address)
    if not _is_open(client, link):
        return False
    if link.peer.target is not None:
        assert client.send(link, _MESSAGE.encode()) == Accepted()
        link.detach()
    return True


def _receives(world: World, client: WireClient, address: str) -> bool:
    """Whether a receiver is let in. What it gets it gives back."""
    link = client.attach_receiver(address)
    if not _is_open(client, link):
        return False
    if link.peer.source is not None:
        if address.lower() in ("tenant", "tenant/private", "tenant2", "other"):
            world.fill(address.lower())
            link.grant(1)
            event = client.wait_for(DeliveryReceived, lambda got: got.link is link)
            assert client.settled(event.delivery_id, Released()) == Released()
        link.detach()
    return True


# -- sessions ---------------------------------------------------------------------------------

SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
_HELD: Final = ("renew-session-lock", "get-session-state", "set-session-state")


def session_cells(world: World) -> Iterator[Cell]:
    """What one connection can do with a session that it holds, that another holds, or nobody."""
    place = entity(SESSIONS)
    tokens = [shown("", rule, "") for rule in CLAIMS]
    root = world.connect(shown("", "owner", ""))
    for name in ("a", "b", "c"):
        message = Message(properties=Properties(message_id=name, group_id=name), body=b"x")
        root.send(root.attach_sender(SESSIONS), message.encode())
    holder = world.connect(shown("", "worker", ""))
    event = _accepted(holder, "a")
    for token in tokens:
        client = world.connect(token)
        own = "Listen" in token.credential.claims
        mine = _accepted(client, "b") if own else None
        for session, holds in (("a", False), ("b", own), ("c", False)):
            for operation in _HELD:
                body = {"session-id": session, "session-state": b"x"}
                was_let_in = _is_done(client, operation, body)
                is_right = may_use_session(token.credential, place, holds_session=holds)
                yield _cell(token.credential, operation, session, was_let_in, is_right)
        for locked, holds in ((event, False), (mine, own)):
            if locked is not None:
                body = {
                    "disposition-status": "abandoned",
                    "lock-tokens": Array.of(0x98, [_lock_token(locked)]),
                }
                was_let_in = _is_done(client, "update-disposition", body)
                is_right = may_use_session(token.credential, place, holds_session=holds)
                yield _cell(token.credential, "settle in a session", "a", was_let_in, is_right)
        client.close()
    holder.close()
    root.close()


def _accepted(client: WireClient, session: str) -> DeliveryReceived:
    """Take a session, and a message of it under its lock."""
    link = client.attach_receiver(
        SESSIONS, source=Source(address=SESSIONS, filter={SESSION_FILTER: session})
    )
    link.grant(1)
    event: DeliveryReceived = client.wait_for(DeliveryReceived, lambda got: got.link is link)
    return event


def _lock_token(event: DeliveryReceived) -> UUID:
    annotations = Message.decode(event.payload).delivery_annotations
    assert annotations is not None
    token: UUID = annotations["x-opt-lock-token"]
    return token


def _is_done(client: WireClient, operation: str, body: Any) -> bool:
    reply = client.manage(SESSIONS, f"com.microsoft:{operation}", body).application_properties
    assert reply is not None
    return int(reply["statusCode"]) < 300


# -- ATOM -------------------------------------------------------------------------------------

_ATOM = "http://www.w3.org/2005/Atom"
_SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_CHANGE: Final = {"If-Match": "*"}
NEWS, NEWS_S = entity("news"), part("news", "subscriptions/s")


def entry(kind: str, inside: str = "") -> bytes:
    """The body of a request that describes an entity."""
    return (
        f'<entry xmlns="{_ATOM}"><content type="application/xml">'
        f'<{kind} xmlns="{_SERVICE_BUS}" xmlns:i="{_INSTANCE}">{inside}</{kind}></content></entry>'
    ).encode()


def _rules_xml(path: str) -> str:
    """The rules of an entity: an update that leaves them out takes them away."""
    if path not in SCOPES:
        return ""
    rules = ""
    for name, claims in CLAIMS.items():
        rights = "".join(f"<AccessRights>{claim}</AccessRights>" for claim in sorted(claims))
        rules += (
            '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
            f"<Rights>{rights}</Rights><KeyName>{name}</KeyName>"
            f"<PrimaryKey>{key_of(path, name)}</PrimaryKey>"
            f"<SecondaryKey>{key_of(path, name, 'secondary')}</SecondaryKey></AuthorizationRule>"
        )
    return f"<AuthorizationRules>{rules}</AuthorizationRules>"


def _kind(path: str) -> str:
    return "TopicDescription" if path == "news" else "QueueDescription"


_RULE: Final = entry(
    "RuleDescription", '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>'
)


@dataclass(frozen=True)
class Request:
    """An administrative call at a place."""

    operation: str
    method: str
    path: str
    place: Place | None
    body: bytes = b""
    is_change: bool = False
    spoils: str = ""
    """The entity that is put right when the call was let in."""


def _atom_requests() -> Iterator[Request]:
    for path in ("$namespaceinfo", "$Resources/queues", "$Resources/topics"):
        yield Request("list", "GET", path, NAMESPACE)
    for path, place in ATOM_PATHS.items():
        found = "" if place is None else place.path
        body = entry(_kind(found), _rules_xml(found))
        yield Request("get", "GET", path, place)
        yield Request("update", "PUT", path, place, body, is_change=True)
        yield Request("create", "PUT", path, place, body, spoils=found)
        yield Request("delete", "DELETE", path, place, spoils=found)
    below, described = "news/subscriptions", entry("SubscriptionDescription")
    yield Request("list subscriptions", "GET", below, NEWS)
    for name in ("s", "S", "new"):
        place = part("news", f"subscriptions/{name.lower()}")
        path = f"{below}/{name}"
        yield Request("get subscription", "GET", path, place)
        yield Request("update subscription", "PUT", path, place, described, is_change=True)
        yield Request("create subscription", "PUT", path, place, described, spoils=place.path)
        yield Request("delete subscription", "DELETE", path, place, spoils=place.path)
    yield Request("list rules", "GET", f"{below}/s/rules", NEWS_S)
    for name in ("$Default", "new"):
        rule = f"{below}/s/rules/{name}"
        yield Request("get rule", "GET", rule, NEWS_S)
        yield Request("add rule", "PUT", rule, NEWS_S, _RULE)
        yield Request("change rule", "PUT", rule, NEWS_S, _RULE, is_change=True)
    yield Request("remove rule", "DELETE", f"{below}/s/rules/new", NEWS_S)


ATOM_REQUESTS: Final = list(_atom_requests())


def atom_cells(world: World, token: Shown | None) -> Iterator[Cell]:
    """Every administrative call with one token."""
    who = NOBODY if token is None else token.credential
    for call in ATOM_REQUESTS:
        status = world.ask(
            call.method, f"/{call.path}", token, call.body, _CHANGE if call.is_change else None
        )
        was_let_in = _is_in(status)
        if was_let_in and call.spoils:
            world.restore(call.spoils)
        may_do = may(who, "Manage", call.place)
        yield Cell("ATOM", who.label, call.operation, call.path, was_let_in, may_do)


def _is_in(status: int) -> bool:
    assert status < 500, f"the broker failed with {status}"
    return status not in (400, 401, 403)


# -- forwards ---------------------------------------------------------------------------------

HEADERS: Final = {
    "ForwardTo": "ServiceBusSupplementaryAuthorization",
    "ForwardDeadLetteredMessagesTo": "ServiceBusDlqSupplementaryAuthorization",
}
_SOURCES: Final = {"tenant": entity("tenant"), "news/subscriptions/s": NEWS_S}
_TARGETS: Final = ("other", "tenant2", "tenant/private")


def _callers() -> Iterator[Shown]:
    yield shown("tenant", "owner", "tenant")
    yield shown("tenant", "worker", "tenant")
    yield shown("tenant", "owner", "tenant", "expired")
    yield shown("news", "owner", "news")
    yield shown("other", "owner", "other")
    yield shown("", "owner", "")
    yield shown("", "owner", "tenant")
    yield shown("", "owner", "news")
    yield shown("", "worker", "")


def _proofs(target: str) -> Iterator[Shown | None]:
    yield None
    for rule in CLAIMS:
        yield shown(target, rule, target)
    yield shown("", "sender", "")
    yield shown("", "sender", target)
    yield shown("", "listener", target)
    yield shown("", "sender", "news")
    yield shown("tenant", "owner", "tenant")
    yield shown(target, "sender", target, "wrong key")
    yield shown(target, "sender", target, "expired")
    yield shown(target, DELETED, target)


def forward_cells(world: World) -> Iterator[Cell]:
    """Who may let an entity forward, with whose token for the target."""
    for (path, source), target, (name, header), other_header in itertools.product(
        _SOURCES.items(), _TARGETS, HEADERS.items(), (False, True)
    ):
        for caller, proof in itertools.product(_callers(), _proofs(target)):
            shown_in = header
            if other_header:
                # The proof of the other kind of forward proves nothing for this one.
                (shown_in,) = set(HEADERS.values()) - {header}
            headers = {**_CHANGE}
            if proof is not None:
                headers[shown_in] = proof.token(world.admin_port)
            body = _forwarding(path, name, target)
            was_let_in = _is_in(world.ask("PUT", f"/{path}", caller, body, headers))
            if was_let_in:
                world.restore(source.path)
            is_right = may_forward(
                caller.credential,
                source,
                entity(target),
                proof=None if proof is None or other_header else proof.credential,
                is_unchanged=False,
            )
            label = "nothing" if proof is None else proof.credential.label
            who = f"{caller.credential.label}, and {label} in {shown_in}"
            yield Cell("ATOM", who, f"forward with {name}", path, was_let_in, is_right)
    yield from _unchanged_cells(world)


def _unchanged_cells(world: World) -> Iterator[Cell]:
    """An update that leaves a forward as it is, or leads it elsewhere, without a token for it."""
    for caller, target, asked in itertools.product(_callers(), _TARGETS, _TARGETS):
        token = shown("", "owner", "")
        set_by_owner = _forwarding("tenant", "ForwardTo", target)
        assert world.ask("PUT", "/tenant", token, set_by_owner, _CHANGE) == 200
        body = _forwarding("tenant", "ForwardTo", asked)
        was_let_in = _is_in(world.ask("PUT", "/tenant", caller, body, _CHANGE))
        is_right = may_forward(
            caller.credential,
            entity("tenant"),
            entity(asked),
            proof=None,
            is_unchanged=target == asked,
        )
        operation = f"update that forwards to {asked} instead of {target}"
        yield Cell("ATOM", caller.credential.label, operation, "tenant", was_let_in, is_right)
    world.restore("tenant")


def _forwarding(path: str, name: str, target: str) -> bytes:
    url = escape(f"sb://localhost/{target}")
    kind = "SubscriptionDescription" if "/subscriptions/" in path else "QueueDescription"
    rules = _rules_xml(path)
    inside = {"ForwardTo": f"{rules}<ForwardTo>{url}</ForwardTo>"}.get(
        name, f"{rules}<{name}>{url}</{name}>"
    )
    return entry(kind, inside)


# -- JSON -------------------------------------------------------------------------------------

_BASE = "/namespaces/demo"
JSON_REQUESTS: Final = (
    # What is let in finds nothing, or is refused for what it says: nothing is spoiled.
    ("list queues", "GET", "/queues", b""),
    ("runtime counts", "GET", "/queues/tenant", b""),
    ("runtime counts", "GET", "/queues/tenant/private", b""),
    ("create", "PUT", "/queues/tenant", b"{}"),
    ("create", "PUT", "/queues/tenant/private", b"{}"),
    ("update", "PATCH", "/queues/tenant", b'{"max_delivery_count": 10}'),
    ("forward", "PATCH", "/queues/tenant", b'{"forward_to": null}'),
    ("forward", "PATCH", "/queues/missing", b'{"forward_to": "other"}'),
    ("delete", "DELETE", "/queues/tenant/missing", b""),
    ("purge", "POST", "/queues/tenant/missing/purge", b"{}"),
    ("purge", "POST", "/queues/tenant/purge", b'{"dry_run": true}'),
    ("reset", "POST", "/reset", b'{"nothing": true}'),
    ("list topics", "GET", "/topics", b""),
    ("get", "GET", "/topics/news", b""),
    ("create", "PUT", "/topics/news", b"{}"),
    ("delete", "DELETE", "/topics/missing", b""),
    ("list subscriptions", "GET", "/topics/news/subscriptions", b""),
    ("get subscription", "GET", "/topics/news/subscriptions/s", b""),
    ("create subscription", "PUT", "/topics/news/subscriptions/s", b"{}"),
    ("delete subscription", "DELETE", "/topics/news/subscriptions/missing", b""),
    ("list rules", "GET", "/topics/news/subscriptions/s/rules", b""),
    ("remove rule", "DELETE", "/topics/news/subscriptions/s/rules/missing", b""),
    ("operations", "GET", "/operations", b""),
    ("list access rules", "GET", "/rules", b""),
    ("add access rule", "PUT", "/rules/owner", b'{"claims": ["Send"]}'),
    ("remove access rule", "DELETE", "/rules/missing", b""),
    ("rotate key", "POST", "/keys/missing/primary", b""),
    ("list faults", "GET", "/faults", b""),
    ("add fault", "POST", "/faults", b'{"kind": "nothing"}'),
    ("clear fault", "DELETE", "/faults/missing", b""),
    ("subsystems", "GET", "/subsystems", b""),
    ("assign subsystem", "PUT", "/subsystems", b"{}"),
    ("start", "POST", "/start", b""),
)


def json_cells(world: World, token: Shown | None) -> Iterator[Cell]:
    """Every route of our own with one token: all of them are for who administers the namespace."""
    who = NOBODY if token is None else token.credential
    may_do = may_administer(who)
    requests = [(name, method, _BASE + path, body) for name, method, path, body in JSON_REQUESTS]
    requests.append(("advance clock", "POST", "/clock/advance", b"{}"))
    if not may_do:
        # Who may, stops it; the others are asked to try.
        requests.append(("stop", "POST", f"{_BASE}/stop", b""))
    for name, method, path, body in requests:
        status = world.ask(method, path, token, body, {"Content-Type": "application/json"})
        assert status < 500, f"{method} {path}: {status}"
        yield Cell("JSON", who.label, name, path, status not in (401, 403), may_do)
