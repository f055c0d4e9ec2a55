"""One cluster and one pair of brokers for all tests here; the last test kills a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.standalone import Standalone
from tests.spark.brokers import SparkPair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkPair]:
    standing = SparkPair(tmp_path_factory.mktemp("brokers"))
    try:
        yield standing.start()
    finally:
        standing.close()


@pytest.fixture(scope="session")
def credentials(pair: SparkPair) -> dict[str, str]:
    """What every machine of the cluster has in its environment."""
    return {
        "SERVICEBUS_CONNECTION_STRING": pair.primary.connection_string,
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": pair.secondary.connection_string,
    }


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, credentials: dict[str, str]
) -> Iterator[Standalone]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with Standalone(directory, environment=credentials) as started:
        yield started
