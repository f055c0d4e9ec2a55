"""Rules of subscriptions: written by one tenant, run for every message of the others.

An input has five parts: a SQL filter, an action, a correlation filter and a parameter as JSON, how
often the rule stands in the topic, and a message. Reading a rule is one call; asking all rules of
a topic about a message has steps, and so have the copies that actions make.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from twinbus.amqp.errors import AmqpError
from twinbus.amqp.limits import DEFAULT_LIMITS
from twinbus.broker.engine.filters import (
    CorrelationFilter,
    MessageView,
    RuleDescription,
    RuleIndex,
    SqlAction,
    SqlFilter,
    compile_rule,
)
from twinbus.broker.engine.stored_message import unpack_record
from twinbus.broker.server.ingest import FORMAT_MESSAGE, ingest
from twinbus.common.steps import Steps
from twinbus.errors import ConfigurationError, FilterError
from verification.fuzz import grammar, texts
from verification.fuzz.oracle import Meter
from verification.fuzz.targets.base import BaseTarget, mutate_parts, pack, unpack
from verification.fuzz.targets.ingest import NOON, QUEUES

PARTS = 5
RULES_MAX = 200
# The rest of a request that adds a rule: head, token and XML around it.
REQUEST_BYTES = 1_000


TEXT_CHARACTERS: Final = 2_048


class FiltersTarget(BaseTarget):
    name = "filters"
    documented = (ConfigurationError, FilterError, AmqpError)

    def generate(self, random: Random, size: int) -> bytes:
        values: dict[str, Any] = {
            f"k{n}": random.choice(("v", 1, True, 1.5)) for n in range(random.choice((0, 3, 64)))
        }
        message = b"".join((
            grammar.properties(random, random.choice((0, 100))),
            _properties(random, min(size, 60_000)),
            grammar.described(0x75, b"\xa0\x00"),
        ))  # fmt: skip
        return pack(
            texts.expression(random, random.choice((10, 200, 900))).encode(),
            random.choice((b"", texts.action(random, random.choice((10, 500))).encode())),
            json.dumps(values).encode(),
            bytes((random.choice((1, 1, 20, 200)),)),
            message,
        )

    def mutate(self, random: Random, data: bytes, other: bytes) -> bytes:
        return mutate_parts(random, data, other, PARTS)

    def size_of(self, data: bytes) -> int:
        """A rule that stands there a hundred times was sent a hundred times, a request each."""
        sql, action, values, count, payload = unpack(data, PARTS)
        rule_bytes = REQUEST_BYTES + len(sql) + len(action) + len(values)
        return len(payload) + _rule_count(count) * rule_bytes

    def execute(self, data: bytes, meter: Meter) -> None:
        sql, action, values, count, payload = unpack(data, PARTS)
        # Whether the payload is a message is the business of another target.
        taken = ingest(payload, FORMAT_MESSAGE, QUEUES[0], DEFAULT_LIMITS, NOON)
        if not taken.messages:
            return
        record = taken.messages[0].record
        meter.begin()
        parameters = _values(values)
        texts_ = sql.decode("utf-8", "replace"), action.decode("utf-8", "replace")
        described = [meter.call("read rule", _described, *texts_, parameters)]
        if parameters:
            described.append(meter.call("read correlation", _correlation, parameters))
        book: RuleIndex[int] = RuleIndex()
        for number in range(_rule_count(count)):
            for rule in described:
                book.add(number, meter.call("compile", compile_rule, rule))
        view = MessageView(unpack_record(record, 0, len(record)), now_ms=1, random=Random(1))
        for match in _stepped(meter, "match", book.matching_steps(view)):
            _stepped(meter, "copies", match.record_steps(view))


def _stepped(meter: Meter, name: str, steps: Steps[Any]) -> Any:
    """What a topic does with a message; between two steps others have their turn."""
    result: list[Any] = []

    def going() -> Iterator[None]:
        result.append((yield from steps))

    each = going()
    while meter.call(name, next, each, StopIteration) is not StopIteration:
        pass
    return result[0]


def _rule_count(count: bytes) -> int:
    return min(RULES_MAX, max(1, sum(count)))


def _properties(random: Random, size: int) -> bytes:
    names = ("colour", "a", "B", "x", "a b", "q", "name", "@p")
    pairs: list[bytes] = []
    for name in names:
        if random.random() < 0.6:
            long = random.choice((3, 30, size // 8, min(size, 32_000)))
            made = random.choice((grammar.simple(random), grammar.string(b"a" * max(1, long))))
            pairs += [grammar.string(name.encode()), made]
    if random.random() < 0.3:
        for number in range(min(3_000, size // 12)):
            pairs += [grammar.string(b"p%d" % number), b"\x54\x01"]
    return grammar.described(0x74, grammar.plain_map(*pairs))


def _values(data: bytes) -> dict[str, Any]:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _described(sql: str, action: str, values: dict[str, Any]) -> RuleDescription:
    parameters = {
        "@p": values.get("k0", "p"),
        **{f"@{name}": item for name, item in values.items()},
    }
    # Longer texts are refused, and to look for thousands of names in them would be our own time.
    text = sql[:TEXT_CHARACTERS] + action[:TEXT_CHARACTERS]
    parameters = {name: item for name, item in parameters.items() if name in text}
    return RuleDescription(
        "r", SqlFilter(sql, parameters), SqlAction(action, parameters) if action else None
    )


def _correlation(values: dict[str, Any]) -> RuleDescription:
    return RuleDescription("c", CorrelationFilter(properties=values))


def make() -> FiltersTarget:
    return FiltersTarget()
