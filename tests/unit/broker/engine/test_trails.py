"""What an audit tells of messages that come from somewhere else in the namespace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.catalogue_changes import delete
from tests.support.engine.topic_driver import TopicDriver
from twinbus.broker.engine.filters import CorrelationFilter, RuleDescription
from twinbus.broker.metering import AuditLog
from twinbus.common.clock import SystemClock


class AuditedTopic(TopicDriver):
    """Every machine has the audit sink that a broker gives them."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.audit = AuditLog("demo", directory, "5f0c", SystemClock())

    def watch(self) -> None:
        for machine in self.machines():
            machine.audit_sink = self.audit

    def commit(self) -> None:
        super().commit()
        self.audit.commit_with_lines(lambda: None, self.audit.take_closed())()

    def is_disk_full(self) -> None:
        super().is_disk_full()
        # The lines of a commit that failed are forgotten with it.
        self.audit.take_closed()

    def told(self, entity: str, *facts: str) -> list[tuple[Any, ...]]:
        lines = [
            json.loads(line)
            for path in self.directory.rglob("audit-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return [
            (line["event"], *(line.get(fact) for fact in facts))
            for line in lines
            if line["entity"] == entity
        ]


def test_a_publication_and_its_copies_have_one_number(tmp_path: Path) -> None:
    """C3: also where rules choose, and where a copy is a dead letter at once."""
    topic = AuditedTopic(tmp_path)
    topic.subscribe("all", default_ttl_ms=60_000)
    topic.subscribe("red", RuleDescription("red", CorrelationFilter(properties={"hue": "red"})))
    topic.subscribe("odd", requires_session=True)
    topic.watch()

    topic.send("one", hue="blue")
    topic.send("two", "three", hue="red")
    topic.commit()

    publications = [(1,), (2,), (3,)]
    assert [each[1:] for each in topic.told("news", "publication")] == publications
    assert [
        each[1:] for each in topic.told("news/subscriptions/all", "publication")
    ] == publications
    assert topic.told("news/subscriptions/red", "publication") == [("stored", 2), ("stored", 3)]
    dead = topic.told("news/subscriptions/odd/$deadletterqueue", "publication")
    assert [each[1:] for each in dead] == publications
    assert [copies for _event, copies in topic.told("news", "copies")] == [2, 3, 3]
    assert all(expires for _event, expires in topic.told("news/subscriptions/all", "expires"))


def test_what_was_refused_to_a_sender_was_not_published(tmp_path: Path) -> None:
    """C3: a full disk takes nothing; what the broker itself moves is told when it is there."""
    topic = AuditedTopic(tmp_path)
    topic.subscribe("a")
    topic.watch()
    topic.send("later", due_s=60)
    topic.commit()
    topic.at(61)
    topic.topic.handle_timer(topic.now)
    topic.read()
    topic.send("refused")

    topic.is_disk_full()
    topic.commit()

    published = [each for each in topic.told("news", "copies") if each[0] == "published"]
    assert published == [("published", 1)]
    assert len(topic.told("news/subscriptions/a")) == 1


def test_a_subscription_that_is_deleted_meanwhile_got_no_copy(tmp_path: Path) -> None:
    """C3: what an audit calls copies can be found in it."""
    topic = AuditedTopic(tmp_path)
    gone = topic.subscribe("a")
    topic.subscribe("b")
    topic.watch()
    topic.send("one")
    topic.turns()
    delete(topic.catalogue, topic.store, gone)
    gone.discard()
    topic.commit()

    assert topic.told("news", "copies") == [("published", 1)]
