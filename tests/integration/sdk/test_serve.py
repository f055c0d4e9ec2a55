"""``twinbus serve`` as people run it: what it prints, keeps, refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusAuthenticationError

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, bodies, receive

COMMAND = [sys.executable, "-m", "twinbus", "serve"]
FREE_PORTS = ["--namespace", "demo:0", "--admin-port", "0"]
READY_S = 2.0
"""On a quiet machine it takes less than one; this leaves room for neighbours."""
READY_ATTEMPTS = 5
TIMEOUT_S = 30.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A broker that prints text, as on a terminal; ended at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def assert_a_sentence(ended: subprocess.CompletedProcess[str], code: int) -> None:
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.strip()
    assert "Traceback" not in ended.stderr


def test_it_is_ready_within_a_second_or_so(tmp_path: Path) -> None:
    """M10: the best of a few starts, because the machine may be busy."""
    taken_s = []
    for attempt in range(READY_ATTEMPTS):
        began_s = time.monotonic()
        with BrokerProcess(tmp_path / f"data-{attempt}", queues=("orders",)):
            taken_s.append(time.monotonic() - began_s)
        if taken_s[-1] < READY_S:
            return
    pytest.fail(f"it took {taken_s} seconds to be ready")


def test_it_prints_connection_strings_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """M6, M10: text for people, with what a client needs; Ctrl-C is a clean end."""
    with serving(
        "--data", str(tmp_path / "data"), *FREE_PORTS, "--namespace", "other:0"
    ) as process:
        lines = [line_of(process), line_of(process)]
        for name, line in zip(("demo", "other"), lines, strict=True):
            assert re.fullmatch(
                rf"{name}: Endpoint=sb://localhost:\d+;"
                r"SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=[^;]+;"
                r"UseDevelopmentEmulator=true;\n",
                line,
            )
        assert "/health" in line_of(process)

        process.send_signal(signal.SIGINT)
        _output, log = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
        assert "Traceback" not in log
        # Keys go to standard output only
        for line in lines:
            key = line.split("SharedAccessKey=")[1].split(";")[0]
            assert key not in log


def test_keys_are_private_and_kept(tmp_path: Path) -> None:
    """M6: readable by their owner alone, and the same after a restart."""
    with BrokerProcess(tmp_path / "data") as broker:
        before = broker.connection_string
        mode = stat.S_IMODE((tmp_path / "data" / "keys.json").stat().st_mode)
        assert mode == 0o600
        assert broker.stop() == 0
        assert broker.restart().connection_string == before


async def test_namespaces_of_one_process_are_strangers(tmp_path: Path) -> None:
    """M6: equal queue names, different queues, different keys."""
    arguments = ("--namespace", "second:0")
    with BrokerProcess(
        tmp_path / "data", namespace="first", queues=("orders", "first:mine"), arguments=arguments
    ) as broker:
        first, second = (
            Sdk("aio", broker.connection_strings[name]) for name in ("first", "second")
        )
        await first.send("orders", ServiceBusMessage("for the first"))
        await second.send("orders", ServiceBusMessage("for the second"))

        assert bodies(await receive(first.receiver("orders"), 1)) == ["for the first"]
        assert bodies(await receive(second.receiver("orders"), 1)) == ["for the second"]
        with pytest.raises(MessagingEntityNotFoundError):
            await second.send("mine", ServiceBusMessage("not here"))
        # A key of one opens nothing in the other
        endpoint = broker.connection_strings["second"].split(";")[0]
        key = broker.connection_strings["first"].split(";", 1)[1]
        stranger = Sdk("aio", f"{endpoint};{key}")
        with pytest.raises(ServiceBusAuthenticationError):
            await stranger.send("orders", ServiceBusMessage("forged"))
        for sdk in (first, second, stranger):
            await sdk.close()


async def test_the_emulators_config_file_is_understood(tmp_path: Path) -> None:
    """M10: queues with the properties that the file gives them."""
    properties = {"LockDuration": "PT7S", "MaxDeliveryCount": 3, "DefaultMessageTimeToLive": "PT1H"}
    queue = {"Name": "from-file", "Properties": properties}
    namespace = {"Name": "demo", "Queues": [queue]}
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))

    with BrokerProcess(tmp_path / "data", arguments=("--config", str(config))) as broker:
        found = broker.queue("from-file")
        assert found["lock_duration_ms"] == 7_000
        assert found["max_delivery_count"] == 3
        assert found["default_ttl_ms"] == 3_600_000
        sdk = Sdk("aio", broker.connection_string)
        await sdk.send("from-file", ServiceBusMessage("works"))
        assert bodies(await receive(sdk.receiver("from-file"), 1)) == ["works"]
        await sdk.close()


def test_a_data_directory_has_one_broker(tmp_path: Path) -> None:
    """M8: a second one is refused with a sentence, and the first goes on."""
    with BrokerProcess(tmp_path / "data", queues=("orders",)) as broker:
        second = run("--data", str(tmp_path / "data"), *FREE_PORTS)
        assert_a_sentence(second, 1)
        assert broker.queue("orders")["active_message_count"] == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--namespace", "demo:port"], 2),
        (["--namespace", "demo:70000"], 2),
        (["--namespace", "no_underscores:0"], 2),
        (["--namespace", "demo:0", "--queue", "elsewhere:q"], 2),
        (["--namespace", "demo:0", "--queue", "a//b"], 2),
        (["--config", "no-such-file.json"], 2),
        (["--output", "xml"], 2),
        (["--entity-rate", "0"], 2),
        (["--admin-port", "70000"], 2),
        (["--memory", "--audit"], 2),
        (["--data", "/dev/null/data"], 2),
        (["--metering", "/dev/null/metering"], 2),
        (["--disk-free-mb", "-1"], 2),
        (["--entity-rate", "fast"], 2),
        (["--no-such-option"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_arguments_get_a_sentence(tmp_path: Path, arguments: list[str], code: int) -> None:
    """M10: never a traceback; 1 for what cannot be done, 2 for wrong usage."""
    ended = run("--data", str(tmp_path / "data"), "--admin-port", "0", *arguments)
    assert_a_sentence(ended, code)


def test_a_port_in_use_gets_a_sentence(tmp_path: Path) -> None:
    """M10: for AMQP and for HTTP."""
    with BrokerProcess(tmp_path / "data") as broker:
        other = ["--data", str(tmp_path / "other")]
        for ports in (
            ["--namespace", f"demo:{broker.port}", "--admin-port", "0"],
            ["--namespace", "demo:0", "--admin-port", str(broker.admin_port)],
        ):
            ended = run(*other, *ports)
            assert_a_sentence(ended, 1)
            assert "ort" in ended.stderr


def test_health_says_that_all_is_well(broker: BrokerProcess) -> None:
    """M10: without a token; what may be managed needs one."""
    health = broker.health()
    assert health["status"] == "ok"
    assert health["namespaces"]["demo"]["status"] == "ok"
    assert health["namespaces"]["demo"]["port"] == broker.port
    assert broker.http("GET", "/namespaces/demo/queues")[0] == 401
    with pytest.raises(urllib.error.HTTPError, match="404"):
        broker.queue("no-such-queue")
