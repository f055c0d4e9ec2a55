"""One Spark Connect server, one session on it and one pair of brokers for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.optional.connect.server import ConnectServer
from tests.spark.brokers import SparkPair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkPair]:
    with SparkPair(tmp_path_factory.mktemp("brokers")) as standing:
        yield standing


@pytest.fixture(scope="session")
def credentials(pair: SparkPair) -> dict[str, str]:
    """What the server's machine has in its environment, and this process has not."""
    return pair.environment


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, credentials: dict[str, str]
) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("server"), credentials) as started:
        yield started


@pytest.fixture(scope="session")
def remote(server: ConnectServer) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(server.url).getOrCreate()
    yield session
    session.stop()
