"""What is looked at. No Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from twinbus.errors import AccessRefused
from twinbus.spark.connection_refs import NamespaceRef
from twinbus.spark.reconciliation.queue_scan import select_places

AWAY = "home/x-servicebus-transfer/"


class Namespace:
    """What a namespace lists, with Manage or without."""

    def __init__(self, *, has_manage: bool) -> None:
        self._has_manage = has_manage

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        yield SimpleNamespace(management=self)

    async def _listed(self, *names: str) -> AsyncIterator[Any]:
        if not self._has_manage:
            raise AccessRefused("no right to list")
        for name in names:
            yield SimpleNamespace(path=name, name=name)

    def list_queues(self) -> AsyncIterator[Any]:
        return self._listed("Orders", f"{AWAY}0", f"{AWAY}1", "unknown")

    def list_topics(self) -> AsyncIterator[Any]:
        return self._listed("News", "other")

    def list_subscriptions(self, topic: str) -> AsyncIterator[Any]:
        assert topic == "news"
        return self._listed("one", "two")


async def looked_at(
    *wanted: str, has_manage: bool, prefix: str | None = None
) -> tuple[list[str], list[str]]:
    namespace = cast("NamespaceRef", Namespace(has_manage=has_manage))
    return await select_places(namespace, set(wanted), prefix, {"lonely"})


async def test_what_exists_is_asked_for_and_what_does_not_holds_nothing() -> None:
    """C3: of a topic the subscriptions, of a prefix all queues."""
    asked, there = await looked_at("orders", "gone", "news", has_manage=True)
    assert asked == ["gone", "news/subscriptions/one", "news/subscriptions/two", "orders"]
    assert there == ["news/subscriptions/one", "news/subscriptions/two", "orders"]

    asked, there = await looked_at(f"{AWAY}7", has_manage=True, prefix=AWAY)
    assert asked == [f"{AWAY}0", f"{AWAY}1", f"{AWAY}7"]
    assert there == [f"{AWAY}0", f"{AWAY}1"]


async def test_without_manage_a_topic_is_not_asked_like_a_queue() -> None:
    """C3: all that the logs name must be there, except for what holds nothing."""
    wanted = ("orders", "news", "news/subscriptions/one", "lonely")
    asked, there = await looked_at(*wanted, has_manage=False)
    assert asked == there == ["news/subscriptions/one", "orders"]
