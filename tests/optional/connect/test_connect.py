"""The connector and the syphon through a Spark Connect server: `make connect-test`.

This process has no JVM and no credentials: whatever works here works over the wire.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.optional.connect.server import ConnectServer
from tests.spark.brokers import SparkPair
from tests.support.mover.brokers import Scene, until
from twinbus.aio import (
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)
from twinbus.errors import ConfigurationError
from twinbus.spark import register
from twinbus.spark.connection_refs import NamespaceRef
from twinbus.spark.errors import SparkError, translate_spark_errors
from twinbus.spark.syphon import SyphonSettings, read_receipts, start_syphon
from twinbus.spark.syphon.state_directory import StateDir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240, func_only=True)

PRIMARY = "SERVICEBUS_CONNECTION_STRING"
SECONDARY = "SERVICEBUS_SECONDARY_CONNECTION_STRING"


def settings_for(scene: Scene, remote: SparkSession, primary: str = PRIMARY) -> SyphonSettings:
    return SyphonSettings(
        primary=NamespaceRef.of_env(primary),
        secondary=NamespaceRef.of_env(SECONDARY),
        primary_name=scene.name,
        queues=tuple(scene.queues),
    ).on(remote)


def names(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


async def test_the_connector_writes_looks_and_reads(
    remote: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    """S1, S2: a batch is written and looked at, and a stream settles what it has read."""
    register(remote)
    queue = pair.primary.fresh_queue()
    options = {"connectionStringEnv": PRIMARY, "queue": queue}
    rows = remote.range(100).selectExpr("encode(string(id), 'utf-8') as body")
    rows.write.format("servicebus").options(**options).mode("append").save()
    assert remote.read.format("servicebus").options(**options).load().count() == 100

    read = remote.readStream.format("servicebus").options(**options).load()
    query = (
        read.writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert await asyncio.to_thread(query.awaitTermination, 60)
    found = remote.read.parquet(str(tmp_path / "rows")).select("body").collect()
    assert Counter(bytes(row.body) for row in found) == Counter(b"%d" % n for n in range(100))
    left = pair.primary.queue(queue)
    assert left["active_message_count"] == left["locked_message_count"] == 0

    again = remote.readStream.schema("body binary").parquet(str(tmp_path / "rows"))
    pouring = (
        again.writeStream.format("servicebus")
        .options(**options)
        .option("checkpointLocation", str(tmp_path / "pouring"))
        .trigger(availableNow=True)
        .start()
    )
    assert await asyncio.to_thread(pouring.awaitTermination, 60)
    assert pair.primary.queue(queue)["active_message_count"] == 100


async def test_a_backlog_comes_home_over_spark_connect(
    remote: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    """Y1 and Y2: drain and exit; the receipts can be read the same way."""
    scene = Scene(pair, queue_count=4)
    orders = scene.destination()
    await scene.fill(orders, names(2_000))
    syphon = start_syphon(remote, settings_for(scene, remote), tmp_path, once=True)
    assert await asyncio.to_thread(syphon.wait, 100)
    assert await scene.arrived(orders) == Counter(names(2_000))
    assert syphon.status().counts == {"moved": 2_000} and scene.left() == 0
    rows = read_receipts(remote, tmp_path / "receipts").collect()
    assert Counter(row.outcome for row in rows) == {"moved": 2_000}


async def test_controls_are_obeyed_over_spark_connect(
    remote: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    """Y2, Y3: waits, wakes for a message, pauses, resumes and stops; the session goes on."""
    scene = Scene(pair)
    orders = scene.destination()
    syphon = start_syphon(remote, settings_for(scene, remote), tmp_path)
    try:
        await until(lambda: syphon.status().doing == "waiting")
        syphon.pause()
        await until(lambda: syphon.status().doing == "paused")
        await scene.fill(orders, names(50))
        await asyncio.sleep(0.5)
        assert scene.home(orders) == 0
        syphon.resume()
        await until(lambda: scene.home(orders) == 50)
    finally:
        await asyncio.to_thread(syphon.stop)
    assert not syphon.is_running and syphon.status().doing == "stopped"
    assert await scene.arrived(orders) == Counter(names(50))
    assert remote.range(3).count() == 3


async def test_what_is_wrong_on_the_server_is_a_sentence_here(
    remote: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    scene = Scene(pair)
    syphon = start_syphon(remote, settings_for(scene, remote, "NOT_SET_THERE"), tmp_path, once=True)
    with (
        pytest.raises(SparkError, match="'NOT_SET_THERE' is not set") as caught,
        translate_spark_errors(),
    ):
        await asyncio.to_thread(syphon.wait, 60)
    assert "\n" not in str(caught.value)


def command(scene: Scene, state: Path, master: str, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "twinbus", "syphon", "--output", "json", *more),
        *("--primary-name", scene.name, "--state", str(state), "--master", master),
    ]


async def test_the_command_brings_a_backlog_home_over_spark_connect(
    server: ConnectServer, credentials: dict[str, str], pair: SparkPair, tmp_path: Path
) -> None:
    """Y2: `twinbus syphon --master sc://…` on a machine without Java; no secret is told to the
    server."""
    scene = Scene(pair)
    orders = scene.destination()
    await scene.fill(orders, names(300))
    ended = await asyncio.to_thread(
        subprocess.run,
        command(scene, tmp_path, server.url, "--once"),
        env={**os.environ, **credentials, "JAVA_HOME": str(tmp_path / "nowhere")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["moved"] == 300 and "Traceback" not in ended.stderr
    assert await scene.arrived(orders) == Counter(names(300))
    shown = server.log() + ended.stderr + ended.stdout
    for broker in (pair.primary, pair.secondary):
        assert broker.root_rule[1] not in shown


async def test_a_server_that_is_not_there_is_told_at_once(
    credentials: dict[str, str], pair: SparkPair, tmp_path: Path
) -> None:
    ended = await asyncio.to_thread(
        subprocess.run,
        command(Scene(pair), tmp_path, "sc://127.0.0.1:1/;token=canary"),
        env={**os.environ, **credentials},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "127.0.0.1:1" in ended.stderr and "canary" not in ended.stderr
    assert "Traceback" not in ended.stderr


class Hosting:
    """A pair whose syphon runs on the server."""

    def __init__(self, scene: Scene, hosting: SyphonHosting, stack: AsyncExitStack) -> None:
        first, second = scene.pair.primary, scene.pair.secondary
        made = MessagingFactory.from_connection_string
        self.primary = made(first.connection_string, driver="amqp")
        secondary = made(second.connection_string, driver="amqp")
        stack.push_async_callback(secondary.close)
        stack.push_async_callback(self.primary.close)
        self.options = SendAvailabilityPairedNamespaceOptions(
            NamespaceManager.from_connection_string(second.connection_string),
            secondary,
            len(scene.queues),
            enable_syphon=True,
            namespace_name=scene.name,
            syphon=hosting,
        )


async def test_an_application_hosts_its_syphon_on_spark_connect(
    remote: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    """Y2: with references that the server understands; the application's session stays."""
    scene = Scene(pair)
    orders = scene.destination()
    await scene.fill(orders, names(100))
    state = StateDir(tmp_path / "state")
    told = SyphonHosting(
        spark=remote,
        primary=f"env:{PRIMARY}",
        secondary=f"env:{SECONDARY}",
        state_dir=state.path,
    )
    async with AsyncExitStack() as stack:
        hosting = Hosting(scene, told, stack)
        await hosting.primary.pair_namespace(hosting.options)
        await until(lambda: scene.home(orders) == 100)
    await until(lambda: _doing(state) == "stopped", 10)
    assert not remote.streams.active
    assert await scene.arrived(orders) == Counter(names(100))


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({}, "do not know the primary's credential"),
        ({"primary": f"env:{PRIMARY}", "secondary": f"env:{SECONDARY}"}, "temporary directory"),
    ],
)
async def test_a_server_must_be_told_what_it_cannot_know(
    remote: SparkSession, pair: SparkPair, told: dict[str, str], sentence: str
) -> None:
    """P1: it may be on another machine, which has neither this one's files nor its secrets."""
    async with AsyncExitStack() as stack:
        hosting = Hosting(Scene(pair), SyphonHosting(spark=remote, **told), stack)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=sentence):
            await hosting.primary.pair_namespace(hosting.options)


async def test_a_query_outlives_its_program(
    server: ConnectServer,
    credentials: dict[str, str],
    remote: SparkSession,
    pair: SparkPair,
    tmp_path: Path,
) -> None:
    """Y1: kill -9 of the client; the server goes on bringing messages home (until it gives up the
    session, an hour later) and hears a pause. The next start takes over."""
    scene = Scene(pair)
    orders = scene.destination()
    state = StateDir(tmp_path)
    program = subprocess.Popen(
        command(scene, tmp_path, server.url), env={**os.environ, **credentials}
    )
    try:
        await until(lambda: _doing(state) == "waiting", 120)
    finally:
        program.kill()
        program.wait(10)
    await scene.fill(orders, names(100))
    await until(lambda: scene.home(orders) == 100)
    state.set_control(replace(state.control(), is_paused=True))
    await until(lambda: _doing(state) == "paused")
    assert await scene.arrived(orders) == Counter(names(100))
    left = state.status()
    assert left is not None and psutil.pid_exists(left.pid)
    syphon = start_syphon(remote, settings_for(scene, remote), tmp_path)
    try:
        await until(lambda: not psutil.pid_exists(left.pid))
        await until(lambda: syphon.status().doing == "waiting")
    finally:
        await asyncio.to_thread(syphon.stop)


def _doing(state: StateDir) -> str:
    status = state.status()
    return "" if status is None else status.doing
