"""What the administration client was told is done survives kill -9."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

from tests.integration.sdk_administration.clients import Administration
from tests.integration.sdk_administration.test_access_rules import KEY_1, KEY_2, KEY_3, rule
from tests.support.broker_process import BrokerProcess


async def test_changes_are_on_disk_when_the_client_hears_of_them(tmp_path: Path) -> None:
    """M5, M8: created, changed and deleted entities, keys and rules."""
    with BrokerProcess(tmp_path / "data") as broker:
        admin = Administration("sync", broker)
        rules = [rule("own", "Send", primary_key=KEY_1, secondary_key=KEY_2)]
        queue = await admin.create_queue("orders", authorization_rules=rules)
        queue.authorization_rules[0].primary_key = KEY_3
        await admin.update_queue(queue, lock_duration=timedelta(seconds=7))
        await admin.create_topic("news", user_metadata="note")
        await admin.create_subscription("news", "Readers", max_delivery_count=3)
        by_size = SqlRuleFilter("size > @size", {"@size": 3})
        action = SqlRuleAction("SET seen = TRUE")
        await admin.create_rule("news", "Readers", "large", filter=by_size, action=action)
        await admin.create_rule("news", "Readers", "red", filter=CorrelationRuleFilter(label="red"))
        await admin.delete_rule("news", "Readers", "$Default")
        await admin.create_queue("passing")
        await admin.delete_queue("passing")
        before = await everything(admin)
        broker.kill()
        broker.restart()
        after = await everything(admin)
        assert after == before
        assert after["queues"]["orders"]["lock_duration"] == timedelta(seconds=7)
        (kept,) = (await admin.get_queue("orders")).authorization_rules
        assert (kept.primary_key, kept.secondary_key) == (KEY_3, KEY_2)
        assert set(after["rules"]) == {"large", "red"}
        with pytest.raises(ResourceNotFoundError):
            await admin.get_queue("passing")
        await admin.close()


async def everything(admin: Administration) -> dict[str, dict[str, Any]]:
    """All properties of all entities; objects without an equality of their own as dictionaries."""

    def plain(value: Any) -> Any:
        if hasattr(value, "__dict__"):
            return {k: plain(v) for k, v in vars(value).items() if not k.startswith("_")}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return value

    lists = {
        "queues": await admin.all("queues"),
        "topics": await admin.all("topics"),
        "subscriptions": await admin.all("subscriptions", "news"),
        "rules": await admin.all("rules", "news", "readers"),
    }
    return {kind: {each.name: plain(each) for each in found} for kind, found in lists.items()}
