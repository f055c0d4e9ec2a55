"""What an operator leaves open or forgets (cases 173 to 179).

case-177, the control file, is in tests/integration/cli/test_pair_orders.py; case-178, the
authority, in tests/unit/broker/listener/test_certificates.py.
"""

from __future__ import annotations

import json
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions, is_loopback
from twinbus.broker.storage import data_directory
from twinbus.broker.storage.data_directory import DataDirectory
from twinbus.errors import ConfigurationError

# -- case 173: faults, stops and the clock --------------------------------------------------------

DANGEROUS = [
    ("GET", "/namespaces/demo/faults", None),
    ("POST", "/namespaces/demo/faults", {"kind": "crash"}),
    ("DELETE", "/namespaces/demo/faults", None),
    ("GET", "/namespaces/demo/faults/x", None),
    ("DELETE", "/namespaces/demo/faults/x", None),
    ("GET", "/namespaces/demo/subsystems", None),
    ("PUT", "/namespaces/demo/subsystems", {"vault": "billing"}),
    ("POST", "/namespaces/demo/stop", None),
    ("POST", "/namespaces/demo/start", None),
    ("POST", "/clock/advance", {"seconds": 60}),
    ("GET", "/faults/kinds", None),
]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--host", "0.0.0.0"), id="beyond loopback"),
        pytest.param(("--no-faults",), id="switched off"),
    ],
)
def test_case_173_a_key_with_manage_cannot_end_a_service(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """M13: every such route is closed, to a stranger as to all others; the rest goes on."""
    with BrokerProcess(
        tmp_path / "data", queues=("vault",), arguments=(*arguments, "--adjustable-clock")
    ) as broker:
        assert broker.announcement["faults"] is False
        token = broker.token(port=broker.admin_port)
        for method, path, body in DANGEROUS:
            status, told = broker.http(method, path, body, token=token)
            assert (status, "--faults" in told["error"]) == (403, True), (method, path, told)
            if path != "/faults/kinds":
                assert broker.http(method, path, body)[0] == 401
        assert broker.queue("vault")["active_message_count"] == 0
        connected(broker.port, broker.token()).close()


def test_case_173_they_can_be_switched_on(tmp_path: Path) -> None:
    """F1: for tests over a network, by whoever starts the broker."""
    arguments = ("--host", "0.0.0.0", "--faults")
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:
        assert broker.announcement["faults"] is True
        assert broker.admin("GET", "/namespaces/demo/faults") == []


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1", True),
        ("127.9.0.1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.0.2.1", False),
        ("localhost.example", False),
        ("bus.example", False),
    ],
)
def test_case_173_what_loopback_is(host: str, is_own: bool) -> None:
    """M13: a name is not looked up: whoever answers for it could say anything."""
    assert is_loopback(host) is is_own
    assert BrokerOptions(host=host).has_faults is is_own
    assert BrokerOptions(host=host, faults=not is_own).has_faults is not is_own


# -- case 174: the free disk ----------------------------------------------------------------------


async def test_case_174_one_error_does_not_end_the_watch_of_the_free_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """M13, M11: a mount that is away for a moment; otherwise a full disk would go unseen."""
    real = shutil.disk_usage
    async with Broker(BrokerOptions(data_directory=tmp_path / "data")) as broker:
        running = await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))
        namespace = running.access
        known = namespace.throttle.disk_free_bytes

        def away(_path: object) -> Any:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(shutil, "disk_usage", away)
        first = namespace._disk_check
        namespace._check_disk_space()
        assert namespace._disk_check is not None and namespace._disk_check is not first
        assert namespace.throttle.disk_free_bytes == known
        assert "free disk space cannot be read: Input/output error" in caplog.text

        monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=1))
        namespace._check_disk_space()
        assert namespace.throttle.disk_free_bytes == 1


async def test_case_174_an_error_when_a_broker_starts_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M13: it is looked at again a moment later."""

    def away(_path: object) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", away)
    async with Broker(BrokerOptions(data_directory=tmp_path / "data")) as broker:
        running = await broker.add_namespace(NamespaceSpec("demo"))
        assert running.access._disk_check is not None


# -- case 175: a data directory whose parents are new ---------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that were synced, in order."""
    seen: list[Path] = []

    class Watched(data_directory.Disk):
        def sync_directory(self, path: Any) -> None:
            seen.append(Path(path))
            super().sync_directory(path)

    monkeypatch.setattr(data_directory, "Disk", Watched)
    return seen


def test_case_175_every_new_directory_is_synced_where_it_was_made(
    tmp_path: Path, synced: list[Path]
) -> None:
    """M13, M8: a machine that stops could otherwise lose the whole store with one name."""
    data = tmp_path / "srv" / "bus" / "data"
    with DataDirectory(data) as directory:
        directory.namespace_store_path("demo")

    assert synced == [tmp_path, tmp_path / "srv", tmp_path / "srv" / "bus", data]
    assert data.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "srv").stat().st_mode & 0o777 != 0o700, "what is above is not ours alone"


def test_case_175_a_relative_directory_and_one_that_is_there(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """M13: nothing is synced that was not made."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with DataDirectory("new/data"):
            pass
    assert synced == [tmp_path, tmp_path / "new"]


# -- case 176: logs that are never pruned ---------------------------------------------------------


def test_case_176_serve_deletes_its_own_old_logs(tmp_path: Path) -> None:
    """M13: of the days that were said, and nothing else; 0 keeps them all."""
    logs = tmp_path / "metering" / "demo"
    logs.mkdir(parents=True)
    old = ["operations-2020-01-01.jsonl", "audit-2020-01-01.3.jsonl"]
    for name in [*old, "operations-2020-01-01.jsonl.bak", "report.csv"]:
        (logs / name).write_text("{}\n")
    arguments = ("--metering", str(tmp_path / "metering"), "--audit")
    with BrokerProcess(tmp_path / "data", arguments=(*arguments, "--keep-days", "0")) as broker:
        broker.stop()
    assert all((logs / name).exists() for name in old)

    with BrokerProcess(tmp_path / "data", arguments=(*arguments, "--keep-days", "7")) as broker:
        broker.stop()
        assert "1 files of the operations log" in broker.log()
    left = {each.name for each in logs.iterdir()}
    assert not left & {*old}
    assert {"operations-2020-01-01.jsonl.bak", "report.csv"} <= left
    assert len(left) == 4, "today's own are there"


@pytest.mark.parametrize("days", [0, -1, 1 << 40])
def test_case_176_days_out_of_range_are_refused(days: int) -> None:
    with pytest.raises(ConfigurationError, match="keep_days"):
        BrokerOptions(keep_days=days)


# -- case 179: descriptors ------------------------------------------------------------------------


def started_with(limits: tuple[int, int]) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def served(tmp_path: Path, limits: tuple[int, int]) -> tuple[dict[str, Any], str, list[int]]:
    """What a broker says that may open so many files, and what its limits then are."""
    command = [sys.executable, "-m", "twinbus", "serve", "--output", "json", "--memory"]
    command += ["--namespace", "demo:0", "--admin-port", "0"]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, preexec_fn=started_with(limits)
        )
    with process:
        assert process.stdout is not None
        try:
            told = json.loads(process.stdout.readline() or "{}")
            found = Path(f"/proc/{process.pid}/limits").read_text()
            row = next(line for line in found.splitlines() if line.startswith("Max open files"))
            crowd = []
            for _ in range(limits[1] + 50 if limits[1] < 1_000 else 0):
                crowd.append(
                    socket.create_connection(
                        ("127.0.0.1", told["namespaces"]["demo"]["port"]), timeout=5
                    )
                )
            for each in crowd:
                each.close()
            return told, log.read_text(), [int(row.split()[3]), int(row.split()[4])]
        finally:
            process.terminate()


def test_case_179_serve_takes_the_descriptors_there_are(tmp_path: Path) -> None:
    """M13: the soft limit of a shell is often 1,024, and says nothing about the machine."""
    hard = min(8_192, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    told, log, got = served(tmp_path, (256, hard))

    assert got == [hard, hard]
    assert f"descriptors: {hard}" in log
    assert (told["connections_max"], told["strangers_max"]) == (5_000, 512)
    assert "Raise the limit" not in log


def test_case_179_too_few_descriptors_are_shared_out_and_said(tmp_path: Path) -> None:
    """M13: connections are fewer then, and none is accepted that has no descriptor."""
    told, log, _got = served(tmp_path, (400, 400))

    assert told["connections_max"] + 2 * told["strangers_max"] < 400
    assert "Raise the limit with `ulimit -Hn`" in log
    assert "no file descriptor is left" not in log
