"""A test run starts one Spark session, however many workers it has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="there is one worker anyway")
def test_all_that_share_the_session_run_in_one_worker(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    """Versions of pytest and pytest-xdist that do not fit ignore groups, and nothing else fails."""
    assert request.node.nodeid.endswith("@spark")
