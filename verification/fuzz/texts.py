"""Texts from outside: tokens, SQL filters and actions, XML, JSON and HTTP requests."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final
from urllib.parse import quote

TOKEN_PLACE: Final = b"{{token}}"
"""In a request: the target puts a token there that is valid today."""

_NAMES: Final = ("colour", "a", "B", "sys.label", "sys.size", "sys.MessageId", "user.x", "[a b]",
                 '"q"', "sys.EnqueuedTimeUtc", "name", "sys.To")  # fmt: skip
_OWN_NAMES: Final = ("colour", "a", "B", "user.x", "[a b]", "name", "sys.label")
_LITERALS: Final = ("1", "-7", "31", "3.5", "1e308", "'red'", "''", "'a''b'", "NULL", "TRUE",
                    "FALSE", "9223372036854775807", "newid()", "@p", "'%a%b%'", "1e5")  # fmt: skip
_PATTERNS: Final = ("'%'", "'a%'", "'%a%a%a%a%'", "'_%_%_%'", "'%aaaaaaaaab'", "'a\\%' ESCAPE '\\'",
                    "'%_%_%_%_%_b'", "'" + "%a" * 60 + "%b'", "'%" + "_" * 40 + "b%'")  # fmt: skip


def expression(random: Random, size: int, depth: int = 5) -> str:
    """A SQL condition of about that many characters."""
    made = condition(random, depth)
    if len(made) > 1_000 and random.random() < 0.95:
        made = condition(random, 1)
    joiner = random.choice((" AND ", " OR ", " AND NOT "))
    while len(made) < size:
        more = joiner + condition(random, random.randrange(depth))
        if len(made) + len(more) > 1_024 and random.random() < 0.95:
            break
        made += more
    return made


def condition(random: Random, depth: int) -> str:
    choice = random.random()
    if depth > 0 and choice < 0.3:
        joiner = random.choice(("AND", "OR"))
        return f"({condition(random, depth - 1)} {joiner} {condition(random, depth - 1)})"
    if depth > 0 and choice < 0.4:
        return f"NOT {condition(random, depth - 1)}"
    name = random.choice(_NAMES)
    if choice < 0.55:
        return f"{name} {random.choice(('', 'NOT '))}LIKE {random.choice(_PATTERNS)}"
    if choice < 0.65:
        items = ", ".join(random.choice(_LITERALS) for _ in range(random.choice((1, 3, 80))))
        return f"{name} IN ({items})"
    if choice < 0.72:
        return f"{name} IS {random.choice(('', 'NOT '))}NULL"
    if choice < 0.78:
        return f"EXISTS({name})"
    sign = random.choice(("=", "<>", "!=", "<", ">", "<=", ">=", "=="))
    return f"{operand(random, 3)} {sign} {operand(random, 3)}"


def operand(random: Random, depth: int) -> str:
    if depth > 0 and random.random() < 0.3:
        sign = random.choice("+-*/%")
        return f"({operand(random, depth - 1)} {sign} {operand(random, depth - 1)})"
    return random.choice((random.choice(_NAMES), random.choice(_LITERALS)))


def action(random: Random, size: int) -> str:
    """SET and REMOVE statements."""
    made: list[str] = []
    while sum(map(len, made)) < max(1, size):
        name = random.choice(_NAMES if random.random() < 0.05 else _OWN_NAMES)
        if random.random() < 0.3:
            made.append(f"REMOVE {name}")
        else:
            made.append(f"SET {name} = {operand(random, 4)}")
    return "; ".join(made)


def token(random: Random, size: int) -> str:
    """A shared access signature, right or wrong."""
    resource = random.choice((
        "sb://localhost/", "sb://localhost/orders", "https://localhost:80/a/b/c", "sb://x/",
        "sb://localhost/" + "a/" * (size // 2), "sb://localhost/" + "%" * min(size, 4_000),
        "sb://localhost/" + "ä" * (size // 6), "//" + ":" * size,
    ))  # fmt: skip
    fields = [("sr", quote(resource, safe="")), ("sig", quote("A" * 43 + "=", safe="")),
              ("se", random.choice(("4000000000", "0", "-1", "9" * 13, "1e9", "٣"))),
              ("skn", random.choice(("root", "SENDER", "%41", "a" * 300, "%ff", "")))]  # fmt: skip
    if random.random() < 0.3:
        random.shuffle(fields)
    if random.random() < 0.2:
        fields += fields[: random.randrange(5)]
    if random.random() < 0.2:
        fields += [(f"x{n}", "y") for n in range(size // 6)]
    made = "&".join(f"{name}={value}" for name, value in fields)
    prefix = random.choice(
        ("SharedAccessSignature ",) * 5 + ("", "Bearer ", "sharedaccesssignature ")
    )
    return prefix + made


# --- HTTP ----------------------------------------------------------------------------------------

_ATOM: Final = "http://www.w3.org/2005/Atom"
_SB: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
_QUEUE_WORDS: Final = (
    ("LockDuration", ("PT1M", "PT5M", "P10675199DT2H48M5.4775807S", "x", "")),
    ("MaxSizeInMegabytes", ("1024", "-1", "9" * 40)),
    ("RequiresDuplicateDetection", ("true", "false", "yes")),
    ("RequiresSession", ("true", "false")),
    ("DefaultMessageTimeToLive", ("P14D", "PT0S", "P1Y")),
    ("MaxDeliveryCount", ("10", "0")),
    ("EnablePartitioning", ("true", "false")),
    ("ForwardTo", ("orders", "sb://localhost/orders", "")),
    ("UserMetadata", ("x", "é", "y" * 2_000)),
    ("Status", ("Active", "Disabled", "Nonsense")),
)


def queue_xml(random: Random, size: int) -> str:
    """An entry of the administration protocol."""
    kind = random.choice(("QueueDescription", "TopicDescription", "SubscriptionDescription",
                          "RuleDescription", "Nothing"))  # fmt: skip
    inner = "".join(
        f"<{name}>{random.choice(values)}</{name}>"
        for name, values in _QUEUE_WORDS
        if random.random() < 0.5
    )
    if kind == "RuleDescription" or random.random() < 0.1:
        inner += rule_xml(random, size)
    inner += _xml_filler(random, max(0, size - len(inner) - 300))
    return (
        f'<entry xmlns="{_ATOM}"><content type="application/xml"><{kind} xmlns="{_SB}" '
        f'xmlns:i="{_XSI}">{inner}</{kind}></content></entry>'
    )


def rule_xml(random: Random, size: int) -> str:
    """A rule with a filter and an action."""
    if random.random() < 0.5:
        condition_ = expression(random, min(900, size)).replace("&", "&amp;").replace("<", "&lt;")
        filter_ = f'<Filter i:type="SqlFilter"><SqlExpression>{condition_}</SqlExpression></Filter>'
    else:
        count = random.choice((1, 10, max(1, size // 160)))
        pairs = "".join(
            f'<KeyValueOfstringanyType><Key>k{n}</Key><Value i:type="d:string" '
            f'xmlns:d="http://www.w3.org/2001/XMLSchema">v</Value></KeyValueOfstringanyType>'
            for n in range(count)
        )
        filter_ = (
            f'<Filter i:type="CorrelationFilter"><CorrelationId>c</CorrelationId>'
            f"<Properties>{pairs}</Properties></Filter>"
        )
    return f"{filter_}<Name>rule</Name>"


def _xml_filler(random: Random, size: int) -> str:
    if size < 20:
        return ""
    choice = random.randrange(7)
    if choice == 0:
        return "<a>" * (size // 7) + "</a>" * (size // 7)
    if choice == 1:
        return "<a/>" * (size // 4)
    if choice == 2:
        return "&lt;" * (size // 4)
    if choice == 3:
        return "<a " + " ".join(f'b{n}="c"' for n in range(size // 8)) + "/>"
    if choice == 4:
        return "".join(f'<a xmlns:p{n}="urn:{n}"/>' for n in range(size // 22))
    if choice == 5:
        return "<!--" + "x" * size + "-->"
    return "<UserMetadata>" + "é" * (size // 2) + "</UserMetadata>"


def json_body(random: Random, size: int) -> str:
    """A JSON object of the JSON administration, or one that is nothing."""
    known: dict[str, Any] = {
        "max_size_mb": random.choice((1, 1_024, -1, 10**400, 1.5, None)),
        "requires_session": random.choice((True, "yes")),
        "claims": random.choice((["Send"], ["Send"] * 50, "Send", [["Send"]])),
        "forward_to": random.choice((None, "orders", "x" * 300)),
        "default_ttl_ms": random.choice((1, 10**18, True)),
    }
    made = json.dumps({k: v for k, v in known.items() if random.random() < 0.5})
    if size < 100:
        return made
    choice = random.randrange(6)
    if choice == 0:
        return "[" * (size // 2) + "]" * (size // 2)
    if choice == 1:
        return '{"a":' * (size // 6) + "1" + "}" * (size // 6)
    if choice == 2:
        return "{" + ",".join(f'"k{n}":{n}' for n in range(size // 11)) + "}"
    if choice == 3:
        return '{"a":' + "9" * size + "}"
    if choice == 4:
        return '{"a":[' + "{}," * (size // 3) + "{}]}"
    return '{"filter":{"kind":"sql","expression":' + json.dumps("a" * (size - 50)) + "}}"


_PATHS: Final = (
    "/orders", "/$Resources/queues", "/$Resources/topics?$skip=0&$top=100", "/", "/health",
    "/events/subscriptions/all", "/events/subscriptions/all/rules/r1",
    "/events/subscriptions/all/rules/", "/namespaces/fuzz/queues", "/namespaces/fuzz/queues/q1",
    "/namespaces/fuzz/topics/events/subscriptions/all/rules/r1", "/namespaces/fuzz/rules/r",
    "/namespaces/fuzz/faults", "/namespaces/fuzz/queues/orders/purge", "/new-queue",
)  # fmt: skip


def http_request(random: Random, size: int) -> bytes:
    """One request; with a token in about two of three."""
    method = random.choice(("GET", "PUT", "PUT", "PUT", "PATCH", "DELETE", "POST"))
    path = random.choice(_PATHS)
    where = random.choice(("body", "body", "body", "path", "headers", "token"))
    if where == "path":
        path += random.choice(("/a", "%2e", "x", "?a=b&", "/..", "%c3%a9")) * max(1, size // 4)
    is_json = path.startswith("/namespaces")
    body = b""
    if method in ("PUT", "PATCH", "POST"):
        share = size if where == "body" else 300
        text = json_body(random, share) if is_json else queue_xml(random, share)
        body = text.encode("utf-8", "surrogatepass")
    shown = TOKEN_PLACE if random.random() < 0.65 else token(random, min(size, 3_000)).encode()
    if where == "token":
        shown = token(random, size).encode()
    lines = [
        f"{method} {path} HTTP/1.1".encode(),
        b"Host: localhost",
        b"Content-Length: %d"
        % (len(body) if random.random() < 0.95 else random.choice((0, 10**6))),
    ]
    if random.random() < 0.95:
        lines.append(b"Authorization: " + shown)
    if random.random() < 0.2:
        lines.append(b"If-Match: *")
    if where == "headers":
        lines += [b"X-%d: %s" % (n, b"v" * random.choice((1, 50))) for n in range(size // 12)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
