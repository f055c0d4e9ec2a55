"""What rules cost: messages a second through a topic, beside the same topic without rules.

``python -m verification.benchmarks.topic_rules`` measures this alone, without the peer.

A thousand rules on ten subscriptions, of which one lets each message in: one copy is stored in
every case, so that the difference is the rules.

    none         one subscription, every message
    correlation  property = value; the broker finds the rule by the value
    sql_equal    the same as SQL, AND something else; found by the value too
    sql_each     a comparison that must be worked out for every rule
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from verification.benchmarks.processes import BenchError
from verification.benchmarks.report import Figure, print_table
from verification.benchmarks.run import Bench, progress
from verification.benchmarks.sending import Publisher
from verification.benchmarks.twinbus_node import TwinbusNode
from verification.benchmarks.wire import APPLICATION_PROPERTIES, Address
from verification.benchmarks.wire_links import TwinbusPublisher
from verification.benchmarks.wire_values import described, mapped, string, uint
from verification.benchmarks.workers import Drainer, Ran, WindowedJob, run_together

RULES: Final = 1_000
SUBSCRIPTIONS: Final = 10
BODY_BYTES: Final = 1_000
WINDOW: Final = 2_000
SECONDS: Final = 5.0
WARM_UP_S: Final = 1.0
WANTED_RULE: Final = RULES // 2

Rule = Mapping[str, Any]


def correlation(number: int) -> Rule:
    colour = {"type": "string", "value": f"c{number}"}
    return {"kind": "correlation", "properties": {"colour": colour}}


def sql_equal(number: int) -> Rule:
    return {"kind": "sql", "expression": f"colour = 'c{number}' AND price > 1"}


def sql_each(number: int) -> Rule:
    return {"kind": "sql", "expression": f"price % {RULES} = {number}"}


KINDS: Final = {"correlation": correlation, "sql_equal": sql_equal, "sql_each": sql_each}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, as the workers see it."""

    address: Address
    name: str

    def publisher(self, size_bytes: int, batch: int) -> Publisher:
        properties = mapped(
            string("colour"), string(f"c{WANTED_RULE}"), string("price"), uint(WANTED_RULE)
        )
        section = described(APPLICATION_PROPERTIES, properties)
        return TwinbusPublisher(self.address, self.name, bytes(size_bytes), batch, section)

    def drainer(self) -> Drainer:
        raise BenchError("a topic cannot be received from")


def make_topic(node: TwinbusNode, kind: str) -> Topic:
    """A topic with a thousand rules of that kind, or with none."""
    node.put(f"topics/{kind}", {"max_size_mb": 5120})
    if kind == "none":
        node.put(f"topics/{kind}/subscriptions/all", {})
    else:
        for at in range(SUBSCRIPTIONS):
            rules = [
                {"name": f"r{number}", "filter": KINDS[kind](number)}
                for number in range(at, RULES, SUBSCRIPTIONS)
            ]
            node.put(f"topics/{kind}/subscriptions/s{at}", {"rules": rules})
    return Topic(node.address, kind)


def publish(node: TwinbusNode, topic: Topic, seconds: float) -> Ran:
    job = WindowedJob(
        queue=topic, size_bytes=BODY_BYTES, batch=1, window=WINDOW, duration_s=seconds
    )
    return run_together([job], node.pid)


def measure(directory: Path, seconds: float) -> dict[str, Ran]:
    """One run for each kind of rules."""
    node = TwinbusNode(directory)
    node.start()
    try:
        ran = {}
        for kind in ("none", *KINDS):
            progress(f"{RULES} rules: {kind}")
            topic = make_topic(node, kind)
            publish(node, topic, WARM_UP_S)
            ran[kind] = publish(node, topic, seconds)
            node.delete(f"topics/{kind}")
        return ran
    finally:
        node.stop()


def figures(ran: Mapping[str, Ran]) -> list[Figure]:
    none = ran["none"].rate_per_s
    return [
        Figure(
            name=f"topic_1000_rules_{kind}", value=ran[kind].rate_per_s, unit="msg/s",
            peer="no rules", peer_value=none, wanted="no promise",
        )
        for kind in KINDS
    ]  # fmt: skip


def scenario(bench: Bench, name: str) -> list[Figure]:
    """The same among the other benchmarks."""
    if bench.ours is None:
        return []
    with tempfile.TemporaryDirectory(prefix="bench-rules-") as directory:
        ran = measure(Path(directory), bench.duration_s)
    costs = {kind: each.broker_cpu_us_per_message for kind, each in ran.items()}
    bench.raw.setdefault(name, {})["broker_cpu_us_per_message"] = costs
    return figures(ran)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory(prefix="bench-rules-") as directory:
        ran = measure(Path(directory), seconds)
    print_table(figures(ran))
    for kind, each in ran.items():
        cost = each.broker_cpu_us_per_message
        print(f"{kind}: {each.rate_per_s:,.0f} msg/s, {cost:.1f} µs of CPU a message")
    return 0


if __name__ == "__main__":
    sys.exit(main())
