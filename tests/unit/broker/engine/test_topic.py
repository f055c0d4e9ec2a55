"""What a topic does with messages: who gets which, when, and in which transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.catalogue_changes import add_rule, change, create, delete, remove_rule
from tests.support.engine.driver import Answer, bodies
from tests.support.engine.topic_driver import TopicDriver
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import (
    CorrelationFilter,
    FalseFilter,
    FilterError,
    RuleDescription,
    SqlAction,
    SqlFilter,
    compile_rule,
)
from twinbus.broker.engine.outcomes import COMPLETE, DeadLetter
from twinbus.broker.engine.stored_message import IncomingMessage, MessageKeys
from twinbus.broker.namespace import catalogue_plan
from twinbus.broker.storage.interface import PutChunk
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import ConfigurationError


def only(**properties: str) -> RuleDescription:
    return RuleDescription("only", CorrelationFilter(properties=properties))


def test_every_subscription_gets_its_own_copy() -> None:
    """M1: what one subscription settles, the other still has."""
    # Given a topic with two subscriptions and two messages in it
    driver = TopicDriver()
    driver.subscribe("a")
    driver.subscribe("b")
    answer = driver.send("one", "two")
    driver.commit()
    assert answer.is_stored

    # When one of them is emptied
    for message in driver.received_from("a"):
        driver.settle(message, COMPLETE, queue=driver.subscription("a"))
    driver.commit()

    # Then the other has everything, and the emptied one nothing, also after a restart
    driver.restart()
    assert driver.subscription("a").message_count == 0
    assert bodies(driver.received_from("b")) == ["one", "two"]


def test_a_sender_hears_nothing_before_all_copies_are_on_disk() -> None:
    """M8: the acknowledgement and every copy are one transaction."""
    driver = TopicDriver()
    for name in "abc":
        driver.subscribe(name)
    answer = driver.send("one")
    driver.turns()
    reached = set(driver.topic.joined_queues(driver.now))
    assert reached >= set(driver.topic.subscriptions.values())

    # When the open batches are written
    machines, ops = driver._close()
    assert not answer.is_stored

    # Then one list of operations holds the copies of all three, and the topic is among them
    assert len([op for op in ops if isinstance(op, PutChunk)]) == 3
    assert driver.topic in machines
    driver.store.commit(ops)
    told = [ticket for machine in machines for ticket, _seqs in machine.committed()]
    assert told == [answer]


def test_a_refused_send_leaves_nothing_behind() -> None:
    """M8: a disk that is full refuses a send for all subscriptions together."""
    driver = TopicDriver()
    driver.subscribe("a")
    driver.subscribe("b")
    answer = driver.send("one")
    driver.is_disk_full()
    assert answer.error is not None

    # When the next message fits
    again = driver.send("two")
    driver.commit()

    # Then only that one is there, and the books are right
    assert again.is_stored
    for name in "ab":
        assert bodies(driver.received_from(name)) == ["two"]
        assert driver.subscription(name).byte_count == driver.subscription("a").byte_count


def test_a_message_that_nobody_wants_is_accepted_and_gone() -> None:
    """M1: without a matching subscription a send succeeds."""
    driver = TopicDriver()
    driver.subscribe("a", RuleDescription("none", FalseFilter()))
    driver.subscribe("b", with_rules=False)
    answer = driver.send("one")
    driver.commit()
    assert answer.is_stored
    assert driver.topic.message_count == driver.topic.byte_count == 0
    assert [driver.subscription(name).message_count for name in "ab"] == [0, 0]


def test_rules_choose_who_gets_a_message() -> None:
    """M4: each subscription gets what its rules let in, in the order of sending."""
    driver = TopicDriver()
    driver.subscribe("all")
    driver.subscribe("red", only(colour="red"))
    for number, colour in enumerate(["red", "blue", "red"]):
        driver.send(str(number), colour=colour)
    driver.commit()
    assert bodies(driver.received_from("all")) == ["0", "1", "2"]
    assert bodies(driver.received_from("red")) == ["0", "2"]


def test_rules_come_back_after_a_restart() -> None:
    """M4: a rule is kept with its subscription, and a removed one is not."""
    driver = TopicDriver()
    red = driver.subscribe("red", only(colour="red"))
    add_rule(driver.catalogue, driver.store, red, RuleDescription("Blue", FalseFilter()))
    remove_rule(driver.catalogue, driver.store, red, "BLUE")

    driver.restart()
    assert driver.subscription("red").rules == [only(colour="red")]
    driver.send("1", colour="blue")
    driver.send("2", colour="red")
    driver.commit()
    assert bodies(driver.received_from("red")) == ["2"]


def test_a_rule_that_cannot_be_worked_out_concerns_its_subscription_only() -> None:
    """M4: the publisher and the others notice nothing; the message is dead-lettered there."""
    driver = TopicDriver()
    driver.subscribe("strict", only(colour="red"))
    driver.subscribe("lenient", only(colour="red"), dead_lettering_on_filter_errors=False)
    driver.subscribe("other")

    # Given a rule that fails on every message
    def fails(_message: object) -> bool:
        raise FilterError("cannot be worked out")

    broken = compile_rule(only(colour="red"))
    broken.matches = fails
    for name in ("strict", "lenient"):
        machine = driver.subscription(name)
        driver.topic.rule_index.remove_subscription(machine)
        driver.topic.rule_index.add(machine, broken)

    # When a message comes
    answer = driver.send("one", colour="red")
    driver.commit()

    # Then its sender is told that all is well, and only one place has a trace of the trouble
    assert answer.is_stored
    assert bodies(driver.received_from("other")) == ["one"]
    assert driver.subscription("strict").message_count == 0
    assert driver.subscription("lenient").message_count == 0
    (dead,) = driver.received_from(driver.subscription("strict").dead_letters)
    assert dead.message.application_properties is not None
    reason = dead.message.application_properties["DeadLetterReason"]
    assert reason == "FilterEvaluationException"
    assert driver.subscription("lenient").dead_letters.message_count == 0


def test_a_scheduled_message_waits_in_the_topic_and_then_goes_to_all() -> None:
    """M3: the rules that count are those of the due time."""
    driver = TopicDriver()
    driver.subscribe("early")
    answer = driver.send("later", due_s=60)
    driver.commit()
    assert answer.seqs == [1]
    assert driver.topic.scheduled_count == 1
    assert driver.subscription("early").message_count == 0

    # When a subscription is added and the time comes, with a restart on the way
    driver.subscribe("late")
    driver.restart()
    driver.at(61)
    driver.wake()

    # Then both get it, and the topic is empty
    assert bodies(driver.received_from("early")) == ["later"]
    assert bodies(driver.received_from("late")) == ["later"]
    assert (driver.topic.scheduled_count, driver.topic.byte_count) == (0, 0)


def test_a_due_message_survives_a_full_disk() -> None:
    """M8: what the broker itself moves is tried again, and is never there twice."""
    driver = TopicDriver()
    driver.subscribe("a")
    driver.subscribe("b")
    driver.send("later", due_s=60)
    driver.commit()
    driver.at(61)
    driver.topic.handle_timer(driver.now)
    driver.read()
    driver.is_disk_full()
    driver.commit()
    driver.restart()
    driver.wake()
    assert bodies(driver.received_from("a")) == ["later"]
    assert bodies(driver.received_from("b")) == ["later"]


def test_messages_for_now_and_for_later_in_one_batch_are_told_together() -> None:
    """M8: the answer waits for the copies too, although the topic keeps a part."""
    driver = TopicDriver()
    driver.subscribe("a")
    mixed = [
        driver.typed_message("first", None, None, {}),
        driver.typed_message("second", None, driver.now.wall_ms + 60_000, {}),
    ]
    both = Answer()
    driver.topic.enqueue(mixed, both)
    machines, ops = driver._close()
    assert driver.subscription("a") in machines
    driver.store.commit(ops)
    for machine in machines:
        for ticket, seqs in machine.committed():
            ticket.stored(seqs)
    assert both.is_stored
    assert driver.subscription("a").message_count == 1


def test_a_copy_lives_as_long_as_the_shortest_time_to_live_says() -> None:
    """M3: message, topic and subscription each have a say; the shortest wins."""
    driver = TopicDriver()
    driver.subscribe("short", default_ttl_ms=10_000)
    driver.subscribe("long", default_ttl_ms=100_000)
    driver.subscribe("none")
    driver.send("a")
    driver.send("b", ttl_s=50)
    driver.commit()
    assert driver.subscription("short").message_count == 2

    driver.at(20)
    driver.wake()
    assert driver.subscription("short").message_count == 0
    assert driver.subscription("long").message_count == 2
    driver.at(60)
    driver.wake()
    assert bodies(driver.received_from("long")) == ["a"]
    assert bodies(driver.received_from("none")) == ["a"]


def test_the_quota_of_a_topic_counts_every_copy() -> None:
    """M3: MaxSizeInMegabytes is compared with what all subscriptions hold together."""
    driver = TopicDriver(max_size_mb=1)
    for name in "ab":
        driver.subscribe(name)
    half = "x" * 300_000
    driver.send(half)
    driver.commit()
    assert driver.topic.has_room_for(300_000)
    assert not driver.topic.has_room_for(500_000)

    # When one subscription has settled its copy, there is room again
    for message in driver.received_from("a"):
        driver.settle(message, COMPLETE, queue=driver.subscription("a"))
    assert driver.topic.has_room_for(500_000)


def test_a_dead_lettered_copy_goes_to_the_dead_letters_of_its_subscription() -> None:
    """M2: every subscription has a dead-letter queue of its own."""
    driver = TopicDriver()
    a, b = driver.subscribe("a"), driver.subscribe("b")
    driver.send("one")
    driver.commit()
    (message,) = driver.received_from("a")
    driver.settle(message, DeadLetter("bad", ""), queue=a)
    driver.read()
    driver.commit()
    assert (a.message_count, b.message_count) == (0, 1)
    assert bodies(driver.received_from(a.dead_letters)) == ["one"]


def test_what_is_on_its_way_to_a_deleted_subscription_is_gone_without_harm() -> None:
    """M5: a subscription may go while messages for it are in the topic's hands."""
    driver = TopicDriver()
    a = driver.subscribe("a")
    driver.subscribe("b")
    answer = driver.send("one")
    driver.turns()
    delete(driver.catalogue, driver.store, a)
    a.discard()
    driver.commit()
    assert answer.is_stored
    assert bodies(driver.received_from("b")) == ["one"]


def test_a_send_to_a_topic_that_is_deleted_is_refused() -> None:
    """M5: whoever waits for a topic that is gone is told so."""
    driver = TopicDriver()
    answer = driver.send("one")
    assert driver.topic.discard() == [answer]


def test_a_path_belongs_to_one_entity() -> None:
    """M5: a queue and a topic cannot share a name, nor can a topic exist twice."""
    driver = TopicDriver()
    for description in (TopicDescription(path="NEWS"), QueueDescription(path="news")):
        with pytest.raises(ConfigurationError, match="'news' already exists"):
            create(driver.catalogue, driver.store, description)


def test_a_subscription_needs_its_topic() -> None:
    """M5: the refusal says what to do first."""
    driver = TopicDriver()
    lost = SubscriptionDescription(path="other/subscriptions/a")
    with pytest.raises(ConfigurationError, match="Create the topic first"):
        create(driver.catalogue, driver.store, lost)


def test_a_subscription_with_a_bad_rule_is_not_made() -> None:
    """M5: all of it or nothing."""
    driver = TopicDriver()
    twice = [only(colour="red"), only(colour="blue")]
    description = SubscriptionDescription(path="news/subscriptions/a")
    with pytest.raises(ConfigurationError, match="'only' already exists"):
        create(driver.catalogue, driver.store, description, twice)
    assert driver.topic.subscriptions == {}
    driver.subscribe("a")


def test_a_topic_has_at_most_two_thousand_sql_rules() -> None:
    """M4, case 98: the next rule is refused with a sentence, and all others go on working."""
    driver = TopicDriver()
    a = driver.subscribe("a", RuleDescription("first", SqlFilter("colour = 'red'")))
    b = driver.subscribe("b", RuleDescription("first", SqlFilter("colour = 'red'")))
    draft = driver.catalogue.plan()
    for number in range(1_998):
        rule = RuleDescription(f"rule-{number}", SqlFilter(f"colour = 'rule-{number}'"))
        taker = (a, b)[number % 2]
        draft.add_rule(taker.queue_id, taker.description, rule, 0)
    more = RuleDescription("one-too-many", SqlFilter("colour = 'blue'"))
    with pytest.raises(ConfigurationError, match="at most 2000 rules"):
        draft.fork().add_rule(b.queue_id, b.description, more, 0)
    driver.store.commit(draft.ops)
    driver.catalogue.apply(draft)
    driver.restart()
    assert len(driver.topic.rule_index) == 2_000
    driver.send("one", colour="rule-1997")
    driver.commit()
    assert bodies(driver.received_from("b")) == ["one"]
    assert driver.subscription("a").message_count == 0


def test_many_messages_are_passed_on_a_few_at_a_time() -> None:
    """M4: a topic with rules gives the loop back; a batch becomes visible as a whole."""
    driver = TopicDriver()
    driver.subscribe("red", only(colour="red"))
    answer = driver.send(*map(str, range(40)), colour="red")
    driver.topic.take_turn(driver.now)
    assert driver.topic.wants_turn
    assert driver.subscription("red").batch.is_empty()
    driver.commit()
    assert answer.is_stored
    assert bodies(driver.received_from("red")) == [str(number) for number in range(40)]


def test_many_rules_look_at_a_message_in_steps() -> None:
    """M13: subscriptions and rules may go between two steps; who is there gets the message."""
    driver = TopicDriver()
    costly = " OR ".join(f"n = {number} OR n > 0" for number in range(50))
    rules = [RuleDescription(f"r{number}", SqlFilter(costly)) for number in range(40)]
    gone = driver.subscribe("gone", *rules)
    driver.subscribe("stays", *rules)
    driver.subscribe("all")
    answer = driver.send("one", "two", n=1)

    driver.topic.take_turn(driver.now)
    assert driver.topic._steps is not None
    delete(driver.catalogue, driver.store, gone)
    gone.discard()
    for each in rules:
        remove_rule(driver.catalogue, driver.store, driver.subscription("stays"), each.name)
    driver.commit()

    # The first message was looked at by the rules of its time, the second by those of its own.
    assert answer.is_stored
    assert bodies(driver.received_from("stays")) == ["one"]
    assert bodies(driver.received_from("all")) == ["one", "two"]
    assert not driver.topic.wants_turn


def test_a_body_is_stored_once_for_all_who_get_it() -> None:
    """M1: the chunks of one transaction select from one sheet, changed copies included."""
    driver = TopicDriver()
    for name in "abc":
        driver.subscribe(name)
    driver.subscribe("red", only(colour="red"))
    driver.subscribe("short", default_ttl_ms=10_000)
    driver.subscribe("brief", default_ttl_ms=10_000)
    for number, colour in enumerate(["red", "blue", "red"]):
        driver.send(str(number), colour=colour, ttl_s=5 if number == 1 else None)
    _machines, ops = driver._close()

    # Then all chunks name one sheet, with a variant only where the time to live differs
    shares = [op.share for op in ops if isinstance(op, PutChunk)]
    sheets = {id(share.sheet): share.sheet for share in shares if share is not None}
    assert None not in shares and len(shares) == 6
    (sheet,) = sheets.values()
    assert sheet.count == 5
    assert sorted(share.selection.bit_count() for share in shares if share) == [2, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_many_large_messages_fill_sheet_after_sheet(kind: str, tmp_path: Path) -> None:
    """M1: a sheet is no larger than a chunk, and everything comes back in order."""
    store = SqliteStore(tmp_path / "store.db") if kind == "sqlite" else MemoryStore()
    driver = TopicDriver(store)
    driver.subscribe("a")
    driver.subscribe("b")
    driver.subscribe("even", only(parity="0"))
    sent = [f"{number:04}" * 10_000 for number in range(30)]
    for number, body in enumerate(sent):
        driver.send(body, parity=str(number % 2))
    driver.commit()
    driver.restart()
    assert bodies(driver.received_from("a")) == sent
    assert bodies(driver.received_from("b")) == sent
    assert bodies(driver.received_from("even")) == sent[::2]
    driver.store.verify_all()
    driver.store.close()


def test_what_a_full_disk_refused_is_shared_when_it_is_tried_again() -> None:
    """M8: due messages that the store refused come with the next transaction, still shared."""
    driver = TopicDriver()
    driver.subscribe("a")
    driver.subscribe("b")
    driver.send("later", due_s=60)
    driver.commit()
    driver.at(61)
    driver.topic.handle_timer(driver.now)
    driver.read()
    driver.is_disk_full()
    driver.send("new")
    _machines, ops = driver._close()
    shares = [op.share for op in ops if isinstance(op, PutChunk)]
    assert len({id(share.sheet) for share in shares if share is not None}) == 2
    assert len(shares) == 4


def test_changed_copies_with_a_shorter_time_to_live_are_not_mixed_up() -> None:
    """M4: every message keeps its own body, whatever is made of it."""
    driver = TopicDriver()
    rule = RuleDescription("mark", SqlFilter("1 = 1"), SqlAction("SET colour = 'red'"))
    for name in "ab":
        driver.subscribe(name, rule, default_ttl_ms=10_000)
    sent = [str(number) for number in range(50)]
    driver.send(*sent)
    driver.commit()
    assert bodies(driver.received_from("a")) == sent
    assert bodies(driver.received_from("b")) == sent


def with_id(driver: TopicDriver, body: str, message_id: str, **properties: str) -> IncomingMessage:
    message = driver.typed_message(body, None, None, properties)
    message.facts = MessageKeys(message_id, None, None)
    return message


def test_a_topic_remembers_ids_and_copies_in_one_transaction() -> None:
    """M3, M8: an id is not on disk before all copies are, and a refused send is forgotten."""
    driver = TopicDriver(requires_duplicate_detection=True)
    driver.subscribe("red", only(colour="red"))
    messages = [with_id(driver, str(at), f"id-{at}", colour="red") for at in range(5)]
    answer = Answer()
    driver.topic.enqueue(messages, answer)

    # While the messages are being looked at, nothing of them can be written
    driver.topic.take_turn(driver.now)
    assert driver.topic.wants_turn
    assert not driver.topic.is_dirty

    # When the store refuses all of it, a repetition is no duplicate
    driver.is_disk_full()
    assert answer.error is not None
    again = Answer()
    driver.topic.enqueue([with_id(driver, "0", "id-0", colour="red")], again)
    driver.commit()
    assert again.is_stored
    driver.restart()
    assert bodies(driver.received_from("red")) == ["0"]


def test_duplicates_are_taken_out_of_what_subscriptions_get() -> None:
    """M3: also out of changed and dead-lettered copies, in the same batch or a later one."""
    driver = TopicDriver(requires_duplicate_detection=True)
    driver.subscribe("all")
    mark = RuleDescription("mark", SqlFilter("1 = 1"), SqlAction("SET colour = 'red'"))
    driver.subscribe("marked", mark, default_ttl_ms=10_000)
    driver.subscribe("broken", RuleDescription("zero", SqlFilter("1 / 0 = 1")))
    for _ in range(2):
        answer = Answer()
        ids = ["a", "b", "a", "c"]
        messages = [with_id(driver, f"{at}{key}", key) for at, key in enumerate(ids)]
        driver.topic.enqueue(messages, answer)
        driver.commit()
        assert answer.is_stored
    for name in ("all", "marked"):
        assert bodies(driver.received_from(name)) == ["0a", "1b", "3c"]
    dead = driver.subscription("broken").dead_letters
    assert dead is not None
    assert bodies(driver.received_from(dead)) == ["0a", "1b", "3c"]


def test_many_due_messages_are_passed_on_a_few_at_a_time() -> None:
    """M4: rules that take long must not hold up a commit; all arrive in the end."""
    driver = TopicDriver()
    driver.subscribe("red", only(colour="red"))
    driver.send(*map(str, range(70)), due_s=10, colour="red")
    driver.commit()
    driver.at(11)
    driver.topic.handle_timer(driver.now)
    driver.read()
    driver.commit()
    assert driver.subscription("red").message_count == 32
    driver.wake()
    assert sorted(bodies(driver.received_from("red")), key=int) == [str(n) for n in range(70)]


def test_a_topic_has_an_end_of_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: whoever may manage one topic fills no memory with them."""
    monkeypatch.setattr(catalogue_plan, "SUBSCRIPTIONS_MAX", 2)
    driver = TopicDriver()
    driver.subscribe("a")
    driver.subscribe("b")

    with pytest.raises(ConfigurationError, match="2 subscriptions"):
        driver.subscribe("c")

    assert sorted(driver.topic.subscriptions) == ["a", "b"]
    change(driver.catalogue, driver.store, lambda draft: draft.reset(keep_entities=True, at_ms=1))
    driver.restart()
    assert sorted(driver.topic.subscriptions) == ["a", "b"]
