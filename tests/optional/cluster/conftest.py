"""One cluster and one pair of brokers for all tests here; the last test kills a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.optional.cluster.standalone import Standalone
from tests.spark.brokers import SparkPair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkPair]:
    with SparkPair(tmp_path_factory.mktemp("brokers")) as standing:
        yield standing


@pytest.fixture(scope="session")
def credentials(pair: SparkPair) -> dict[str, str]:
    """What every machine of the cluster has in its environment."""
    return pair.environment


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, credentials: dict[str, str]
) -> Iterator[Standalone]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with Standalone(directory, environment=credentials) as started:
        yield started
