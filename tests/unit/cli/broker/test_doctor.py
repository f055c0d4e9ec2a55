"""``twinbus doctor``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.broken_stores import broken_store, good_store
from twinbus.broker.storage.data_directory import DataDirectory
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.cli import app
from twinbus.cli.broker.doctor import EXIT_FINDINGS
from twinbus.errors import ConfigurationError, StoreCorrupt, StoreLocked


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "namespace-shop" / "store.db"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def data(store: Path) -> Path:
    return store.parents[1]


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def test_a_healthy_directory_is_said_to_be_so(store: Path, data: Path) -> None:
    """M15: exit code 0, and one sentence."""
    good_store(store)
    result = run(data)
    assert result.exit_code == 0
    assert "Namespace shop: no findings, 3 messages checked." in result.stdout
    assert "Healthy" in result.stdout


def test_findings_are_sentences_and_another_exit_code(store: Path, data: Path) -> None:
    """M15: with what a repair would do, and the next command."""
    broken_store(store, "two queues of one path")
    result = run(data)
    assert result.exit_code == EXIT_FINDINGS
    assert "The path 'orders' belongs to two queues (numbers 1 and 9)." in result.stdout
    assert "becomes 'orders-recovered-9'" in result.stdout
    assert "--repair" in result.stdout
    assert [path.name for path in data.parent.iterdir()] == ["data"], "nothing was written"


def test_a_repair_goes_into_a_new_directory(store: Path, data: Path) -> None:
    """M15: beside the old one unless told, and never over anything."""
    broken_store(store, "two queues of one path")
    result = run(data, "--repair")
    assert result.exit_code == 0, result.output
    assert "Recovered 4 messages, lost 0 messages." in result.stdout
    assert run(data.with_name("data.repaired")).exit_code == 0
    with pytest.raises(ConfigurationError, match="already exists"):
        raise run(data, "--repair").exception or AssertionError
    assert run(data, "--repair", "--into", data.with_name("other")).exit_code == 0
    assert (data.with_name("other") / "namespace-shop" / "store.db").exists()


def test_the_document_for_programs(store: Path, data: Path) -> None:
    """M15: what is lost is there with its entity and numbers."""
    good_store(store)
    content = bytearray(store.read_bytes())
    content[content.index(b"second")] ^= 1
    store.write_bytes(content)
    result = run(data, "--repair", "--output", "json")
    assert result.exit_code == EXIT_FINDINGS, "messages are lost"
    found = document(result)
    assert found["healthy"] is False and found["repaired"] == f"{data}.repaired"
    assert (found["messages_found"], found["messages_lost"]) == (1, 2)
    (namespace,) = found["namespaces"]
    assert namespace["lost"] == [
        {
            "entity": "orders",
            "first_sequence_number": 1,
            "last_sequence_number": 2,
            "all_of_them": True,
        }
    ]
    assert {each["kind"] for each in namespace["findings"]} == {"row-damaged", "counters-wrong"}
    assert len(run(data, "--output", "jsonl").stdout.splitlines()) == 1


def test_wrong_usage(store: Path, data: Path, tmp_path: Path) -> None:
    """M15: nothing is examined then."""
    good_store(store)
    for arguments in (
        (tmp_path / "nowhere",),
        (tmp_path,),
        (data, "--into", tmp_path / "x"),
        (data, "--output", "xml"),
        (data, "--scratch", tmp_path / "nowhere"),
        (data, "--repair", "--into", data / "inside"),
    ):
        assert isinstance(run(*arguments).exception, ConfigurationError), arguments
    assert run().exit_code == 2


def test_a_served_directory_is_refused(store: Path, data: Path) -> None:
    """M15: by the process that serves it."""
    good_store(store)
    with DataDirectory(data):
        assert isinstance(run(data).exception, StoreLocked)


def test_a_store_that_cannot_be_opened_names_the_command(store: Path) -> None:
    """M15: whoever meets the error knows what to do."""
    good_store(store)
    store.write_bytes(bytes(20_000))
    with pytest.raises(StoreCorrupt) as caught:
        SqliteStore(store).open()
    assert "twinbus doctor" in str(caught.value) and "--repair" in str(caught.value)
