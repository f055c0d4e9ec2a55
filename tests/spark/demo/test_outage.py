"""One run of the demo, with real processes and Spark, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.demo.application import metered_factory
from twinbus.demo.output_files import Files
from twinbus.demo.processes import DemoBrokers
from twinbus.demo.scenario import BACKLOG_QUEUES, PRIMARY, SECONDARY

RUN_S_MAX = 250
AMOUNTS = ("calls", "messages", "units", "bytes_in", "bytes_out")
DROPPED = "dropped-by-hand"

Sums = dict[tuple[str, str], Counter[str]]
"""Amounts by namespace and operation."""


@dataclass(frozen=True)
class Played:
    files: Files
    result: dict[str, Any]

    def read(self, name: str) -> Any:
        return json.loads((self.files / name).read_text())

    def lines(self, namespace: str) -> Iterator[dict[str, Any]]:
        """The operations log of a broker."""
        for path in (self.files.logs / namespace).glob("operations*.jsonl"):
            yield from map(json.loads, path.read_text().splitlines())


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    directory = tmp_path_factory.mktemp("demo") / "kept"
    told = ["--json", "--seed", "7", "--outage", "5s", "--rate", "60", "--keep", str(directory)]
    demo = subprocess.Popen(
        [sys.executable, "-m", "twinbus.demo", *told],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = demo.communicate(timeout=RUN_S_MAX)
    finally:
        demo.terminate()  # It takes its processes along.
        demo.wait(30)
    assert demo.returncode == 0 and "Traceback" not in said, said
    return Played(Files(directory), json.loads(said.splitlines()[-1]))


def test_no_send_fails_and_everything_that_was_sent_is_delivered(played: Played) -> None:
    """P1: the primary is killed with -9, and sends go on; Y1: what was diverted comes home."""
    result = played.result
    assert result["sent"] == result["delivered"] > 300
    assert (result["lost"], result["unexpected"], result["failed_sends"]) == (0, 0, 0)
    assert 0 < result["failover_seconds"] < 5
    assert result["drained"] > 100 and result["drain_messages_per_second"] > 0
    assert result["operations"] > 4 * result["drained"] and result["cost"] > 0
    assert played.read("result.json") == result


def test_the_reports_totals_are_the_brokers_own_counters(played: Played) -> None:
    """C1: what the brokers counted until the end, and what the killed one had written down."""
    expected: Sums = {}
    for namespace, counted in played.read("counters.json").items():
        killed = [line for line in played.lines(namespace) if line["run"] != counted["run"]]
        for each in (*counted["totals"], *killed):
            if any(each[name] for name in AMOUNTS):
                sums = expected.setdefault((namespace, each["operation"]), Counter())
                sums.update({name: each[name] for name in AMOUNTS})

    cost = played.read("cost.json")

    told = {
        (each["keys"]["namespace"], each["keys"]["operation"]): {n: each[n] for n in AMOUNTS}
        for each in cost["slices"]
    }
    assert told == {key: dict(sums) for key, sums in expected.items()}
    assert cost["total"]["units"] == played.result["operations"]
    assert cost["total"]["units"] == sum(sums["units"] for sums in expected.values())


def test_the_report_says_what_the_kill_can_have_cost_it(played: Played) -> None:
    """C3: the killed run is not closed, and at most so many units are missing."""
    lived = played.read("counters.json")[PRIMARY]["run"]
    (killed,) = {line["run"] for line in played.lines(PRIMARY)} - {lived}

    quality = played.read("cost.json")["quality"]

    [run] = quality["open_runs"]
    assert (run["namespace"], run["run"]) == (PRIMARY, killed)
    # Three times what its last second had, and at least a thousand; not what may be at most.
    assert 1_000 <= run["units_missing_max"] < 20_000
    assert (quality["duplicates"], quality["damaged"]) == (0, {})
    page = (played.files / "cost.html").read_text()
    assert f"{run['units_missing_max']:,}" in page and "<svg" in page


def test_a_detour_is_counted_on_its_whole_way(played: Played) -> None:
    """C2: into the backlog and out of it; pings beside it."""
    (pair,) = played.read("cost.json")["pairs"]
    assert pair["pair"] == PRIMARY
    assert pair["detoured_messages"] == played.result["drained"]
    assert pair["detour_units"] >= 2 * pair["detoured_messages"]
    assert pair["ping_units"] > 0
    assert float(pair["cost"]) == pytest.approx(played.result["cost"])


def test_the_reconciliation_closes(played: Played) -> None:
    """C3: every message that the client sent is accounted for, by the logs alone."""
    books = played.read("books.json")
    assert books["closes"] and books["damaged_lines"] == 0
    sums: Counter[str] = Counter()
    for each in books["entities"]:
        sums.update({name: each[name] for name in ("sent", "delivered", "waiting", "missing")})
    assert sums["sent"] == played.result["sent"]
    # The lines of a kill's last commit may be missing: what they would have shown is not proven.
    assert sums["delivered"] + sums["waiting"] == sums["sent"]
    assert sums["waiting"] <= 100


def test_a_message_that_is_dropped_by_hand_is_named(played: Played) -> None:
    """C3: somebody takes one from the backlog behind the syphon's back, an operator asks."""
    asyncio.run(_drop_one(played.files))

    files = played.files
    given = {
        "--primary-logs": files.logs / PRIMARY,
        "--secondary-logs": files.logs / SECONDARY,
        "--client-logs": files.client,
        "--receipts": files.receipts,
        "--journal": files.journal,
    }
    asked = [sys.executable, "-m", "twinbus", "cost", "reconcile", "--output", "json"]
    asked += ["--pair", PRIMARY, *(str(each) for pair in given.items() for each in pair)]
    answered = subprocess.run(asked, capture_output=True, text=True, timeout=RUN_S_MAX)

    assert answered.returncode == 1, answered.stderr
    answer = json.loads(answered.stdout)
    assert not answer["closes"]
    missing = [each for each in answer["differences"] if each["kind"] == "missing"]
    assert [(each["entity"], each["message_id"]) for each in missing] == [("orders", DROPPED)]
    assert f"{PRIMARY}/x-servicebus-transfer/" in missing[0]["said"]


async def _drop_one(files: Files) -> None:
    """The brokers of the demo once more: one message into the backlog, and out by a third party."""
    site = DemoBrokers(files)
    try:
        await site.start()
        await _send_into_the_backlog(files, site)
        async with MessagingFactory.from_connection_string(
            site.addresses[SECONDARY], driver="amqp"
        ) as thief:
            for number in range(BACKLOG_QUEUES):
                receiver = thief.create_message_receiver(
                    f"{PRIMARY}/x-servicebus-transfer/{number}"
                )
                found = await receiver.receive(max_wait_time=0.5)
                if found is not None:
                    assert found.message_id == DROPPED
                    await found.complete()
                    break
            else:
                pytest.fail("the message is not in the backlog")
        await site.stop()
    finally:
        site.close()


async def _send_into_the_backlog(files: Files, site: DemoBrokers) -> None:
    async with (
        metered_factory(site.addresses[SECONDARY], files) as secondary,
        NamespaceManager.from_connection_string(site.addresses[SECONDARY]) as manager,
        metered_factory(site.addresses[PRIMARY], files) as primary,
    ):
        await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(
                manager, secondary, BACKLOG_QUEUES, namespace_name=PRIMARY
            )
        )
        primary.force_failover("orders")
        await primary.create_message_sender("orders").send(
            BrokeredMessage(b"1 coffee", message_id=DROPPED)
        )
