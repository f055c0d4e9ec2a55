"""What ``make conformance`` may leave out, and how it notices what it should not."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from verification.conformance.plugin import Count, Table, short_name
from verification.conformance.sdist import DISTRIBUTION, ROOT, locked_hashes

NOTHING = "[skipped_by_their_authors]\n[outdated]\n"


def table_with(tmp_path: Path, rows: str) -> Table:
    path = tmp_path / "left_out.toml"
    path.write_text(rows + NOTHING)
    return Table.read(path)


def test_the_table_of_the_project_is_in_order() -> None:
    """M10: queues and sessions leave out websockets, proxies and Azure AD, and nothing else."""
    table = Table.read()

    suites = [name for name in table.left_out if name.startswith(("test_queues", "test_sessions"))]
    assert suites
    assert {table.left_out[name].partition(":")[0] for name in suites} <= {
        "websocket",
        "proxy",
        "aad",
    }


@pytest.mark.parametrize("kind", ["azure", "slow"])
def test_a_queue_test_is_not_left_out_for_another_reason(kind: str, tmp_path: Path) -> None:
    rows = f'[left_out.{kind}]\n"test_queues_async.py::test_it" = "because"\n'

    with pytest.raises(pytest.UsageError, match="may not be left out"):
        table_with(tmp_path, rows)


def test_a_test_that_is_skipped_without_standing_in_the_table_is_told(tmp_path: Path) -> None:
    table = table_with(tmp_path, '[left_out.proxy]\n"test_queues.py::test_one" = "a proxy"\n')
    count = Count(
        left_out={"test_queues.py::test_one": "a proxy"},
        skipped={"test_queues.py::test_two": "tired"},
    )

    (complaint,) = count.complaints(table, {"test_queues.py"})

    assert "test_two" in complaint


def test_a_name_in_the_table_that_no_test_has_is_told(tmp_path: Path) -> None:
    table = table_with(tmp_path, '[left_out.proxy]\n"test_queues.py::test_one" = "a proxy"\n')

    assert list(Count().complaints(table, {"test_topic.py"})) == []
    (complaint,) = Count().complaints(table, {"test_queues.py"})

    assert "test_one" in complaint


def test_a_test_is_named_by_its_file_and_its_function() -> None:
    nodeid = "async_tests/test_queues_async.py::TestServiceBusQueueAsync::test_it[pyamqp]"

    assert short_name(nodeid) == "test_queues_async.py::test_it[pyamqp]"


def test_the_tests_that_are_fetched_have_the_hash_of_the_lock_file() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    other = "azure-servicebus==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"

    assert locked_hashes(other, "1.0") == {"0" * 64}
    assert locked_hashes(lock, version(DISTRIBUTION))
    with pytest.raises(SystemExit, match="has no azure-servicebus"):
        locked_hashes(lock, "1.0")
