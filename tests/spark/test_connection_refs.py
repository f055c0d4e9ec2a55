"""A namespace is opened by reference, on a running broker."""

from __future__ import annotations

from tests.spark.brokers import SparkPair


async def test_a_namespace_opened_by_reference_works(pair: SparkPair) -> None:
    async with pair.primary_ref.open() as namespace:
        assert (await namespace.management.namespace_info()).name == "east"
        assert await namespace.primary_name() == "east"
        queue = pair.primary.fresh_queue()
        assert await namespace.driver.receiver(queue).receive(1, wait_s=0.01) == []
