"""The topic against its model: which subscription gets what, in which order, and keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from tests.support.catalogue_changes import unheard
from tests.support.queue_simulation import mutants
from tests.unit.broker.model.machine import (
    INDEX,
    OPTIONS,
    PATH,
    TTLS_MS,
    Machine,
    assert_seen,
    chosen,
)
from tests.unit.broker.model.queue_model import QueueModel, seen
from tests.unit.broker.model.rig import Rig, create_queue
from tests.unit.broker.model.station import STATES, STATUSES, Got, encoded
from twinbus.amqp.codec.types import Int
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.broker.namespace.namespace import Namespace

SUBSCRIPTIONS = ("one", "two", "three")
COLORS = ("red", "green")


class Letter(NamedTuple):
    """What rules look at."""

    color: str
    size: int

    @property
    def properties(self) -> dict[str, Any]:
        return {"color": self.color, "size": Int(self.size)}


# Each rule as the broker has it and as the model understands it.
RULES: dict[str, tuple[Any, Callable[[Letter], bool]]] = {
    "everything": (TrueFilter(), lambda _letter: True),
    "nothing": (FalseFilter(), lambda _letter: False),
    "red": (CorrelationFilter(properties={"color": "red"}), lambda each: each.color == "red"),
    "large": (SqlFilter("size > 5"), lambda each: each.size > 5),
    "small-green": (
        SqlFilter("size <= 5 AND color LIKE 'gr%'"),
        lambda each: each.size <= 5 and each.color == "green",
    ),
}
RULE_SETS = st.sets(st.sampled_from(sorted(RULES)), max_size=3)
LETTERS = st.builds(Letter, st.sampled_from(COLORS), st.sampled_from([1, 9]))


class Due(NamedTuple):
    """A message that the topic keeps until its time has come."""

    due_ms: int
    seq: int
    label: str
    letter: Letter
    ttl_ms: int | None


def address(name: str) -> str:
    return f"{PATH}/subscriptions/{name}"


def create_topic(namespace: Namespace, lock_ms: int, delivery_count: int) -> None:
    if namespace.catalogue.find(PATH) is not None:
        return
    create_queue(namespace, TopicDescription(path=PATH))
    for name in SUBSCRIPTIONS:
        description = SubscriptionDescription(
            path=address(name), lock_duration_ms=lock_ms, max_delivery_count=delivery_count
        )
        create_queue(namespace, description)


class TopicAndModel(Machine):
    """A topic with three subscriptions whose rules change."""

    @initialize(
        lock_s=st.sampled_from([1, 5, 30]), max_delivery_count=st.sampled_from([1, 2, 3, 10])
    )
    def create(self, lock_s: int, max_delivery_count: int) -> None:
        rig = Rig(
            self.store(),
            lambda namespace: create_topic(namespace, lock_s * 1_000, max_delivery_count),
        )
        models = {
            address(name): QueueModel(lock_s * 1_000, max_delivery_count, False)
            for name in SUBSCRIPTIONS
        }
        self.begin(rig, models)
        self.rules = {path: {"everything"} for path in models}
        for path in models:
            self.exchange_rules(path, {"$Default"}, {"everything"})
        self.due: list[Due] = []
        self.due_count = 0
        self.got: list[tuple[str, Got]] = []

    # -- rules ----------------------------------------------------------------------------

    @rule(name=st.sampled_from(SUBSCRIPTIONS), wanted=RULE_SETS)
    def change_rules(self, name: str, wanted: set[str]) -> None:
        path = address(name)
        self.exchange_rules(path, self.rules[path] - wanted, wanted - self.rules[path])
        self.rules[path] = wanted

    def exchange_rules(self, path: str, removed: set[str], added: set[str]) -> None:
        namespace = self.rig.namespace
        subscription = namespace.catalogue.find(path)
        assert isinstance(subscription, Subscription)
        queue_id, description = subscription.queue_id, subscription.description

        def plan(draft: Draft) -> None:
            for each in sorted(removed):
                draft.remove_rule(queue_id, description, each)
            for each in sorted(added):
                made = RuleDescription(name=each, filter=RULES[each][0])
                draft.add_rule(queue_id, description, made, 0)

        namespace.submit(plan, unheard)
        self.rig.run()

    def distribute(self, label: str, letter: Letter, since_ms: int, ttl_ms: int | None) -> None:
        """M1, M4: every subscription one of whose rules matches gets one copy."""
        for path, model in self.models.items():
            if any(RULES[each][1](letter) for each in self.rules[path]):
                model.send(label, self.rig.now()._replace(wall_ms=since_ms), ttl_ms)

    # -- sending --------------------------------------------------------------------------

    @rule(letters=st.lists(LETTERS, min_size=1, max_size=4), ttl_ms=TTLS_MS)
    def send(self, letters: list[Letter], ttl_ms: int | None) -> None:
        for letter in letters:
            label = self.label()
            payload = encoded(label, ttl_ms=ttl_ms, properties=letter.properties)
            self.station.send(PATH, payload)
            self.distribute(label, letter, self.rig.now().wall_ms, ttl_ms)

    @rule(letter=LETTERS, delay_ms=st.sampled_from([1, 2_000]), ttl_ms=TTLS_MS)
    def schedule(self, letter: Letter, delay_ms: int, ttl_ms: int | None) -> None:
        label, due_ms = self.label(), self.rig.now().wall_ms + delay_ms
        properties = letter.properties
        payload = encoded(label, ttl_ms=ttl_ms, due_ms=due_ms, properties=properties)

        (seq,) = self.station.schedule(PATH, [payload])

        self.due_count += 1
        assert seq == self.due_count
        self.due.append(Due(due_ms, seq, label, letter, ttl_ms))

    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        seq = self.due[index % len(self.due)].seq if self.due else 1_000

        assert self.station.cancel(PATH, [seq]) == bool(self.due)

        self.due = [each for each in self.due if each.seq != seq]

    # -- receiving ------------------------------------------------------------------------

    @rule(name=st.sampled_from(SUBSCRIPTIONS), count=st.sampled_from([1, 1, 3, 50]))
    def receive(self, name: str, count: int) -> None:
        path = address(name)
        model = self.models[path]
        expected = model.free(self.rig.now())[:count]

        got = self.station.receive(path, count)

        assert seen(got) == [message.seen() for message in expected]
        model.take(expected, got, self.rig.now())
        self.got += [(path, each) for each in got]

    @rule(index=INDEX, outcome=st.sampled_from(sorted(STATES)), by_token=st.booleans())
    def settle(self, index: int, outcome: str, by_token: bool) -> None:
        live = [pair for pair in self.got if self.models[pair[0]].holder(pair[1]) is not None]
        if not self.got:
            return
        path, got = chosen(self.got, live, index)
        message = self.models[path].holder(got)
        if outcome in STATUSES and (by_token or got.delivery_id is None):
            was_held = self.station.settle_by_token(path, got, outcome)
        elif got.delivery_id is not None:
            was_held = self.station.settle(got, outcome)
        else:
            return
        assert was_held == (message is not None)
        if message is not None:
            self.models[path].settle(message, outcome, self.rig.now())

    @rule(name=st.sampled_from(SUBSCRIPTIONS), buries=st.booleans())
    def look(self, name: str, buries: bool) -> None:
        path = address(name)
        if buries:
            self.empty_the_dead_letters(path, 50)
        expected = self.models[path].peek(1, 250, self.rig.now())

        assert seen(self.station.peek(path)) == [each.seen() for each in expected]

    # -- time and trouble -----------------------------------------------------------------

    def next_event_s(self) -> float | None:
        now = self.rig.now()
        dues = [now.monotonic_s + (each.due_ms - now.wall_ms) / 1_000 for each in self.due]
        at_s = super().next_event_s()
        times = [*dues, *([] if at_s is None else [at_s])]
        return min((at for at in times if at > now.monotonic_s), default=None)

    def look_at_the_clock(self) -> None:
        now = self.rig.now()
        for each in sorted(self.due):
            if each.due_ms <= now.wall_ms:
                self.due.remove(each)
                self.distribute(each.label, each.letter, each.due_ms, each.ttl_ms)
        super().look_at_the_clock()

    def detach(self) -> None:
        """M2: message locks survive a detach."""
        path = address(SUBSCRIPTIONS[0])
        self.station.close_receiver(path)
        self.got = [
            (where, Got(got.label, got.seq, 0, got.token) if where == path else got)
            for where, got in self.got
        ]

    def begin_send(self) -> None:
        self.hasty = self.label()
        letter = Letter(COLORS[0], 9)
        self.station.begin_send(PATH, encoded(self.hasty, properties=letter.properties))

    def sent(self, is_stored: bool) -> None:
        self.got = []
        if is_stored:
            self.distribute(self.hasty, Letter(COLORS[0], 9), self.rig.now().wall_ms, None)

    @invariant()
    def the_counts_agree(self) -> None:
        if not hasattr(self, "rig"):
            return
        topic = self.rig.namespace.catalogue.find(PATH)
        assert isinstance(topic, Topic)
        assert topic.scheduled_count == len(self.due)
        for path, model in self.models.items():
            subscription = self.rig.namespace.catalogue.find(path)
            assert subscription is not None
            locked = [each for each in model.held.values() if each.token is not None]
            assert subscription.locked_count == len(locked)


@pytest.mark.parametrize("part", range(4))
def test_a_topic_does_what_the_model_says(part: int) -> None:
    """M1, M2, M4, M8: rules that change, schedules, locks, restarts and clock jumps."""
    run_state_machine_as_test(TopicAndModel, settings=OPTIONS)


def keep_removed_rules_on_disk(patch: pytest.MonkeyPatch) -> None:
    """A rule that was removed is back after a restart."""
    remove = Draft.remove_rule

    def half(self: Draft, queue_id: int, description: QueueDescription, name: str) -> None:
        remove(self, queue_id, description, name)
        self.ops.pop()

    patch.setattr(Draft, "remove_rule", half)


def overlook_a_change_of_rules(patch: pytest.MonkeyPatch) -> None:
    """Whether messages must be looked at is found out once."""
    look = Topic._find_everyone

    def once(self: Topic) -> None:
        if not getattr(self, "_everyone_known", False):
            look(self)
        self._everyone_known = self._knows_everyone = True  # type: ignore[attr-defined]

    patch.setattr(Topic, "_find_everyone", once)


@pytest.mark.parametrize(
    ("plant", "seed_number"),
    [
        (keep_removed_rules_on_disk, 1),
        (overlook_a_change_of_rules, 1),
        (mutants.count_no_attempt, 5),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_model_sees_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None],
    seed_number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M1, M4: the comparison can fail, and does for each of these mistakes."""
    plant(monkeypatch)

    assert_seen(TopicAndModel, seed_number)
