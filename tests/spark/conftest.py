"""One Spark session and one pair of brokers for all tests that leave them alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.brokers import SparkPair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
TEST_S_MAX = 180
# No JVM in these: they may run anywhere, beside those that have one.
WITHOUT_SPARK = frozenset(
    (
        "test_bell.py",
        "test_desk.py",
        "test_troubles.py",
        "test_virtual_hour.py",
        "books/test_looking.py",
        "books/test_runs.py",
        "books/test_shown.py",
        "connector/test_available_now.py",
        "connector/test_brain.py",
        "connector/test_columns.py",
        "connector/test_dispatch.py",
        "connector/test_holding.py",
        "connector/test_keeping.py",
        "connector/test_options.py",
        "connector/test_receiving.py",
        "cost/test_blocks.py",
        "cost/test_counting.py",
        "cost/test_findings.py",
        "cost/test_lines.py",
        "cost/test_steps.py",
    )
)


@pytest.hookimpl(tryfirst=True)  # xdist looks for groups in the same hook.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A JVM takes a core and a half: all that need one share one worker, and its session."""
    for item in items:
        if HERE in item.path.parents:
            if item.path.relative_to(HERE).as_posix() not in WITHOUT_SPARK:
                item.add_marker(pytest.mark.xdist_group("spark"))
            # The first test of all waits for Spark's start, which is not its own time.
            item.add_marker(pytest.mark.timeout(TEST_S_MAX, func_only=True))
    # Minutes for one worker: begun last, they would be waited for by all the others.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as ``twinbus syphon`` has it; everything it writes is gone with the test run."""
    from twinbus.spark.session import local_session

    scratch = tmp_path_factory.mktemp("spark")
    session = local_session(
        "twinbus tests",
        cores=2,
        fast_start=True,
        more={
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkPair]:
    """Brokers that no test kills."""
    with SparkPair(tmp_path_factory.mktemp("brokers")) as standing:
        yield standing


@pytest.fixture
def mortal_pair(tmp_path: Path) -> Iterator[SparkPair]:
    """Brokers that a test may kill."""
    with SparkPair(tmp_path) as mortal:
        yield mortal
