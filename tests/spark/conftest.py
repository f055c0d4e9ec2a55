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
# Their programs start JVMs of their own: one such program at a time is enough for a machine.
WITH_PROGRAMS = frozenset(
    (
        "test_java_from_pip.py",
        "test_secrets.py",
        "demo/test_outage.py",
        "demo/test_stopping.py",
        "syphon/test_command.py",
        "syphon/test_program_kills.py",
    )
)


@pytest.hookimpl(tryfirst=True)  # xdist looks for groups in the same hook.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker, and its session, for all modules that need one; all others may run beside it."""
    ours = [item for item in items if HERE in item.path.parents]
    with_session = {item.path for item in ours if "spark" in getattr(item, "fixturenames", ())}
    for item in ours:
        if item.path in with_session:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.path.relative_to(HERE).as_posix() in WITH_PROGRAMS:
            item.add_marker(pytest.mark.xdist_group("spark programs"))
        # The first test of all waits for Spark's start, which is not its own time.
        item.add_marker(pytest.mark.timeout(TEST_S_MAX, func_only=True))
    # Minutes for one worker: begun last, they would be waited for by all the others.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as ``twinbus syphon`` has it; everything it writes is gone with the test run."""
    from twinbus.spark.runtime.session import local_session

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
