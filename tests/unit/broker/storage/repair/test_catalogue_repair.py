"""M15: entities that no broker could serve are repaired, and none of their messages is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broken_stores import MESSAGES, MORE, RECIPES, broken_store, good_store
from tests.support.parcels import bodies
from twinbus.broker.data_repair import examine_data
from twinbus.broker.engine.descriptions import QueueDescription, SubscriptionDescription
from twinbus.broker.namespace.catalogue_repair import check_catalogue
from twinbus.broker.options import ThrottleThresholds
from twinbus.broker.storage.interface import EntityRow
from twinbus.broker.storage.repair.catalogue_rows import CatalogueRows
from twinbus.broker.storage.repair.findings import FindingKind, Severity
from twinbus.drivers.embedded import EmbeddedNamespace

SOON_S = 30.0
ROOMY = ThrottleThresholds(disk_free_bytes_min=16 << 20)
RED = "news/subscriptions/red"

EXPECTED: dict[str, tuple[FindingKind, dict[str, list[str]]]] = {
    "two queues of one path": (FindingKind.ENTITY_DUPLICATE, {"orders-recovered-9": MORE}),
    "two topics of one path": (FindingKind.ENTITY_DUPLICATE, {}),
    "two subscriptions of one path": (
        FindingKind.ENTITY_DUPLICATE,
        {f"{RED}-recovered-9": MORE},
    ),
    "two rules of one path": (FindingKind.ENTITY_DUPLICATE, {}),
    "a queue that was only updated": (FindingKind.ENTITY_DUPLICATE, {}),
    "a queue and a topic of one path": (FindingKind.ENTITY_DUPLICATE, {}),
    "a subscription without its topic": (FindingKind.TOPIC_MISSING, {}),
    "a rule without its subscription": (FindingKind.SUBSCRIPTION_MISSING, {}),
    "a queue without its dead-letter queue": (FindingKind.DEAD_LETTER_MISSING, {}),
    "a dead-letter queue without its queue": (FindingKind.DEAD_LETTER_MISSING, {}),
    "a forward to nowhere": (FindingKind.FORWARD_TARGET_MISSING, {}),
    "a circle of forwards": (FindingKind.FORWARD_CIRCLE, {}),
    "a description that cannot be read": (FindingKind.ENTITY_UNREADABLE, {}),
    "an entity of an unknown kind": (FindingKind.ENTITY_UNREADABLE, {}),
}


def test_every_recipe_is_expected_something_of() -> None:
    assert EXPECTED.keys() == RECIPES.keys()


def data_with(tmp_path: Path, recipe: str | None) -> Path:
    store = tmp_path / "data" / "namespace-shop" / "store.db"
    store.parent.mkdir(parents=True)
    if recipe is None:
        good_store(store)
    else:
        broken_store(store, recipe)
    return tmp_path / "data"


async def served(data: Path, paths: list[str]) -> dict[str, list[str]]:
    """What a real broker has in these entities."""
    found = {}
    async with EmbeddedNamespace("shop", data_directory=data, thresholds=ROOMY) as shop:
        driver = shop.driver()
        for path in paths:
            receiver = driver.receiver(path)
            messages = await receiver.peek(100, timeout_s=SOON_S)
            found[path] = [body.decode() for body in bodies(messages)]
            await receiver.close()
        await driver.close()
    return found


@pytest.mark.parametrize("recipe", RECIPES)
async def test_a_broken_catalogue_is_repaired_with_every_message(
    recipe: str, tmp_path: Path
) -> None:
    """M15: the finding says what it is, and a broker serves the repaired store."""
    data = data_with(tmp_path, recipe)
    kind, more = EXPECTED[recipe]
    expected = {**MESSAGES, **more}
    if recipe == "a rule without its subscription":
        del expected[RED]

    report = examine_data(data, tmp_path / "new")

    assert kind in {finding.kind for finding in report.all_findings()}
    assert all(each.sentence.endswith(".") and each.repair for each in report.all_findings())
    assert report.is_healthy == (recipe == "a forward to nowhere")
    assert (report.totals.found, report.totals.lost) == (sum(map(len, expected.values())), 0)
    assert await served(tmp_path / "new", list(expected)) == expected
    again = examine_data(tmp_path / "new")
    assert again.is_healthy, again.all_findings()


async def test_a_good_catalogue_is_good(tmp_path: Path) -> None:
    """M15: nothing is found where nothing is wrong."""
    report = examine_data(data_with(tmp_path, None), tmp_path / "new")
    assert report.all_findings() == []
    assert await served(tmp_path / "new", list(MESSAGES)) == MESSAGES


# -- the catalogue alone ----------------------------------------------------------------------


def queue_row(queue_id: int, path: str, **properties: object) -> EntityRow:
    description = QueueDescription(path=path, **properties)  # type: ignore[arg-type]
    return EntityRow(queue_id, path, "queue", description.to_json())


def dead_row(queue_id: int, path: str) -> EntityRow:
    return EntityRow(queue_id, f"{path}/$deadletterqueue", "dead-letter", "")


def rows_of(*entities: EntityRow, **contents: int) -> CatalogueRows:
    held = {int(name.removeprefix("q")): count for name, count in contents.items()}
    known = {entity.queue_id for entity in entities}
    orphans = held.keys() - known
    return CatalogueRows(list(entities), [], held, set(orphans), set(), known | held.keys(), 50)


def paths(rows: CatalogueRows) -> dict[int, str]:
    return {entity.queue_id: entity.path for entity in check_catalogue(rows).entities}


def test_dead_letters_stay_with_the_entity_that_was_made_with_them() -> None:
    """M15: of two queues of one path each keeps its own."""
    rows = rows_of(
        queue_row(1, "a"), dead_row(2, "a"), queue_row(3, "a"), dead_row(4, "a"), q2=5, q4=7
    )
    assert paths(rows) == {
        1: "a",
        2: "a/$deadletterqueue",
        3: "a-recovered-3",
        4: "a-recovered-3/$deadletterqueue",
    }


def test_an_entity_that_lost_its_row_is_made_again_from_its_dead_letters() -> None:
    """M15: the path is known from them, the messages from their number."""
    plan = check_catalogue(rows_of(dead_row(2, "a"), dead_row(6, f"{RED}"), q1=3, q5=1))
    found = {entity.queue_id: (entity.path, entity.kind) for entity in plan.entities}
    assert found[1] == ("a", "queue")
    assert found[5] == (RED, "subscription")
    assert ("news", "topic") in found.values()


def test_messages_without_any_name_get_one() -> None:
    """M15: none is dropped because nobody knows whose it was."""
    plan = check_catalogue(rows_of(q9=3))
    assert {entity.path for entity in plan.entities} == {
        "recovered-9",
        "recovered-9/$deadletterqueue",
    }
    assert FindingKind.ENTITY_MISSING in {finding.kind for finding in plan.findings}


def test_what_was_renamed_neither_forwards_nor_deletes_itself() -> None:
    """M15: recovered messages stay where the report says that they are."""
    rows = rows_of(
        queue_row(1, "a"),
        dead_row(2, "a"),
        queue_row(3, "a", forward_to="b", auto_delete_on_idle_ms=300_000),
        dead_row(4, "a"),
        queue_row(5, "b"),
        dead_row(6, "b"),
        q1=1,
        q3=1,
    )
    (renamed,) = [row for row in check_catalogue(rows).entities if row.queue_id == 3]
    description = QueueDescription.from_json(renamed.description_json)
    assert description.path == "a-recovered-3"
    assert (description.forward_to, description.auto_delete_on_idle_ms) == (None, None)


def test_long_names_are_shortened_when_they_get_a_suffix() -> None:
    """M15: a repaired path is a path that the broker takes."""
    long, name = "q" * 260, "s" * 50
    subscription = SubscriptionDescription(path=f"news/subscriptions/{name}")
    row = subscription.to_json()
    rows = rows_of(
        queue_row(1, long),
        queue_row(3, long),
        EntityRow(5, subscription.path, "subscription", row),
        EntityRow(7, subscription.path, "subscription", row),
        q1=1,
        q3=1,
        q5=1,
        q7=1,
    )
    found = paths(rows)
    assert len(found[3]) == 260 and found[3].endswith("-recovered-3")
    assert len(found[7].rpartition("/")[2]) == 50 and found[7].endswith("-recovered-7")


def test_a_forward_to_a_missing_target_is_a_warning_and_ends() -> None:
    """M14: another entity of that name is not the one that messages were allowed to go to."""
    forwards = {"forward_to": "gone", "forward_dead_lettered_messages_to": "b"}
    rows = [queue_row(1, "a", **forwards), dead_row(2, "a"), queue_row(3, "b"), dead_row(4, "b")]
    plan = check_catalogue(rows_of(*rows))
    (finding,) = plan.findings
    assert (finding.kind, finding.severity) == (
        FindingKind.FORWARD_TARGET_MISSING,
        Severity.WARNING,
    )
    (queue,) = [row for row in plan.entities if row.path == "a"]
    description = QueueDescription.from_json(queue.description_json)
    assert description.forward_to is None
    assert description.forward_dead_lettered_messages_to == "b"
