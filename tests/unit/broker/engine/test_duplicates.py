"""Duplicate detection: what is dropped, when it is acknowledged, and what is forgotten."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.engine.driver import START_MS, Answer, Driver, bodies
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.duplicate_detection import ADMITTED_IN_STEP, DUPLICATE, DuplicateHistory
from twinbus.broker.engine.outcomes import COMPLETE
from twinbus.broker.engine.stored_message import DIGEST_BYTES, IncomingMessage, MessageKeys
from twinbus.broker.namespace.catalogue import Catalogue
from twinbus.errors import ConfigurationError

WINDOW_S = 60


@pytest.fixture
def driver() -> Driver:
    return Driver(requires_duplicate_detection=True, duplicate_detection_window_ms=WINDOW_S * 1_000)


def named(driver: Driver, text: str, due_s: float | None = None) -> IncomingMessage:
    """``id=body``, or a body without an id."""
    message_id, equals, body = text.rpartition("=")
    due_ms = None if due_s is None else START_MS + round(due_s * 1_000)
    message = driver.message(body, due_ms=due_ms)
    message.facts = MessageKeys(message_id if equals else None, None, None, driver.now.wall_ms)
    return message


def send(driver: Driver, *texts: str, due_s: float | None = None) -> Answer:
    answer = Answer()
    driver.queue.enqueue([named(driver, text, due_s) for text in texts], answer)
    return answer


def sent(driver: Driver, *texts: str) -> None:
    answer = send(driver, *texts)
    driver.commit()
    assert answer.is_stored


def test_a_repeat_is_acknowledged_and_dropped(driver: Driver) -> None:
    """M3: within the window, whatever its body."""
    sent(driver, "1=first")
    sent(driver, "1=again", "2=second")
    sent(driver, "2=again")

    assert bodies(driver.receive(driver.client())) == ["first", "second"]
    assert driver.queue.message_count == 2


def test_a_repeat_is_dropped_although_the_original_was_completed(driver: Driver) -> None:
    """M3: what was processed is not processed again."""
    sent(driver, "1=first")
    client = driver.client()
    (received,) = driver.receive(client)
    driver.settle(received, COMPLETE)
    driver.commit()

    sent(driver, "1=again")

    assert driver.receive(client) == []
    assert driver.queue.byte_count == 0


def test_repeats_inside_one_batch_are_dropped(driver: Driver) -> None:
    """M3: the first of them stays."""
    sent(driver, "1=a", "1=b", "2=c", "1=d")

    assert bodies(driver.receive(driver.client())) == ["a", "c"]


def test_messages_without_an_id_are_never_duplicates(driver: Driver) -> None:
    """M3: nor are those with an empty one."""
    sent(driver, "a", "a", "=b", "=b")

    assert bodies(driver.receive(driver.client())) == ["a", "a", "b", "b"]


def test_an_id_is_forgotten_when_its_window_is_over(driver: Driver) -> None:
    """M3: to the millisecond, although memory and disk are tidied later."""
    sent(driver, "1=first")
    driver.at(WINDOW_S - 0.001)
    sent(driver, "1=too early")
    driver.at(WINDOW_S)
    sent(driver, "1=again")
    driver.at(WINDOW_S + 1)
    sent(driver, "1=too early again")

    assert bodies(driver.receive(driver.client())) == ["first", "again"]


def test_old_ids_leave_memory_and_disk(driver: Driver) -> None:
    """M3: memory holds one window, not the life of the queue."""
    for second in range(5):
        driver.at(second)
        sent(driver, f"{second}=x")
    history = driver.queue.history
    assert history is not None and len(history) == 5

    # When the timer comes that the queue asks for
    at_s = driver.queue.next_timer_s(driver.now)
    assert at_s == pytest.approx(1_000 + WINDOW_S + 1)
    driver.at(WINDOW_S + 2)
    driver.wake()

    # Then the ids of the first three seconds are gone, everywhere
    assert len(history) == 2
    driver.store.close()
    (pages,) = driver.store.open().seen.values()
    assert [page.page for page in pages] == [4, 5]


def test_a_longer_or_shorter_window_takes_effect_at_once(driver: Driver) -> None:
    """M3: for ids that are remembered already, too."""
    sent(driver, "1=first")
    driver.at(5)
    driver.queue.description = QueueDescription(
        path="orders", requires_duplicate_detection=True, duplicate_detection_window_ms=5_000
    )
    sent(driver, "1=again")

    assert bodies(driver.receive(driver.client())) == ["first", "again"]


def test_a_restart_forgets_nothing(driver: Driver) -> None:
    """M3, M8: the syphon relies on it: a crash repeats messages, and here they are dropped."""
    sent(driver, "1=first")
    sent(driver, "2=second")
    driver.restart()
    sent(driver, "1=again", "2=again", "3=third")

    driver.at(WINDOW_S + 2)
    driver.wake()
    sent(driver, "1=much later")
    assert bodies(driver.receive(driver.client())) == ["first", "second", "third", "much later"]


def test_what_was_not_committed_is_not_remembered(driver: Driver) -> None:
    """M8: an id without its message would swallow the repeat that saves it."""
    answer = send(driver, "1=lost with the crash")
    driver.restart()
    assert not answer.is_stored

    sent(driver, "1=sent again")
    assert bodies(driver.receive(driver.client())) == ["sent again"]


def test_a_duplicate_waits_until_its_original_is_on_disk(driver: Driver) -> None:
    """M8: in the same batch, and while the batch is on its way."""
    first, same_batch = send(driver, "1=first"), send(driver, "1=again")
    tell = driver.begin_commit()
    on_its_way = send(driver, "1=once more")
    assert not (first.is_stored or same_batch.is_stored or on_its_way.is_stored)

    tell()
    assert first.is_stored and same_batch.is_stored
    driver.commit()
    assert on_its_way.is_stored
    assert bodies(driver.receive(driver.client())) == ["first"]


def test_what_comes_behind_a_waiting_duplicate_keeps_its_place(driver: Driver) -> None:
    """M3: a sender's messages arrive in the order in which it sent them."""
    send(driver, "1=first")
    tell = driver.begin_commit()
    answers = [send(driver, "1=again", "2=second"), send(driver, "3=third"), send(driver, "fourth")]
    tell()
    driver.commit()

    assert all(answer.is_stored for answer in answers)
    assert bodies(driver.receive(driver.client())) == ["first", "second", "third", "fourth"]


def test_a_refused_original_takes_its_duplicates_with_it(driver: Driver) -> None:
    """M8, M11: an acknowledged duplicate of a message that is nowhere would be a loss."""
    first, again = send(driver, "1=first"), send(driver, "1=again", "2=beside it")
    driver.refuse()
    assert first.error is not None and again.error is not None

    # Its id was taken back: the next attempt is the original
    sent(driver, "1=next attempt", "2=next attempt")
    assert bodies(driver.receive(driver.client())) == ["next attempt", "next attempt"]
    assert driver.queue.message_count == 2


def test_what_waited_for_a_refused_original_takes_its_place(driver: Driver) -> None:
    """M8: it is stored itself, or refused itself."""
    first = send(driver, "1=first")
    machines, _ops = driver._close()
    waited = send(driver, "1=again")
    for machine in machines:
        for ticket in machine.failed():
            ticket.failed(OSError())
    assert first.error is not None and waited.error is None

    driver.commit()
    assert waited.is_stored
    assert bodies(driver.receive(driver.client())) == ["again"]


def test_what_the_broker_moves_itself_stays_seen_while_it_is_tried_again(driver: Driver) -> None:
    """M8: a forwarded message is refused, kept and stored later; its repeat is still dropped."""
    driver.queue.enqueue([named(driver, "1=moved")], None)
    driver.refuse()
    repeat = send(driver, "1=again", "2=other")
    driver.refuse()
    driver.commit()
    assert repeat.error is not None
    sent(driver, "1=once more", "2=other")

    assert bodies(driver.receive(driver.client())) == ["moved", "other"]


def test_what_the_broker_moves_waits_for_an_original_that_may_be_refused(driver: Driver) -> None:
    """M8: dropped as the repeat of a send that the disk then refuses, it would be nowhere."""
    # Given the send of a client that is not on disk yet
    refused = send(driver, "1=sent")
    history = driver.queue.history
    assert history is not None

    # Then a message that leaves another queue waits there until its fate is known
    assert history.must_wait([named(driver, "1=moved")], is_ours=True)
    assert not history.must_wait([named(driver, "2=other")], is_ours=True)
    driver.refuse()
    assert refused.error is not None
    assert not history.must_wait([named(driver, "1=moved")], is_ours=True)

    # And one that is tried again until it is stored is an original to lean on
    driver.queue.enqueue([named(driver, "1=moved")], None)
    assert not history.must_wait([named(driver, "1=moved again")], is_ours=True)


def test_a_due_message_leaves_the_schedule_and_arrives_in_one_transaction(driver: Driver) -> None:
    """M8: also while others wait for an original on its way; a crash would lose it between."""
    # Given a scheduled message, and a repeat that waits for its original
    send(driver, "1=later", due_s=10)
    driver.commit()
    send(driver, "2=first")
    tell = driver.begin_commit()
    send(driver, "2=again")

    # When the message is due before the commit of the original is told, and the process dies
    # after the next commit
    driver.at(11)
    driver.queue.handle_timer(driver.now)
    driver.read()
    tell()
    driver.commit()
    driver.restart()

    # Then it is there
    assert sorted(bodies(driver.receive(driver.client()))) == ["first", "later"]


def test_a_deleted_queue_tells_everybody_who_waits(driver: Driver) -> None:
    """M3: also who waits for an original on its way."""
    send(driver, "1=first")
    driver.begin_commit()
    waited = send(driver, "1=again")

    assert waited in driver.queue.discard()


def test_scheduled_messages_count_when_they_are_scheduled(driver: Driver) -> None:
    """M3: neither is scheduled twice, nor dropped when its time comes."""
    send(driver, "1=later", due_s=10)
    driver.commit()
    duplicate = named(driver, "1=again", 20)
    answer = Answer()
    driver.queue.enqueue([duplicate, named(driver, "2=other", 20)], answer)
    driver.commit()
    sent(driver, "1=now")

    assert duplicate.facts is DUPLICATE
    assert answer.seqs is not None and len(answer.seqs) == 1
    assert driver.queue.scheduled_count == 2
    driver.read()
    driver.at(21)
    driver.wake()
    assert bodies(driver.receive(driver.client())) == ["later", "other"]


def test_a_clock_that_jumps_back_forgets_nothing_early() -> None:
    """M3: an id is kept for at least a window, and for no more than one from the jump on."""
    history = DuplicateHistory()
    message = IncomingMessage(b"x", facts=MessageKeys("1", None, None, 1_000_000))
    assert history.remove_duplicates([message], 60_000) == [message]
    history.close(1, 1_000_000)
    history.commit_finished()
    assert history.sweep(1_000_001, 60_000) == 0

    # When the wall clock is set back by 900 s
    again = IncomingMessage(b"x", facts=MessageKeys("1", None, None, 100_000))
    assert history.remove_duplicates([again], 60_000) == []
    assert history.sweep(100_000, 60_000) == 0
    assert history.sweep(159_999, 60_000) == 0
    assert len(history) == 1

    # Then a window later it is forgotten, and not 960 s later
    assert history.sweep(160_000, 60_000) == 1
    assert len(history) == 0


def test_equal_ids_in_different_partitions_are_different() -> None:
    """M3: as in Azure, a partitioned entity compares the key and the id."""
    for is_partitioned, fresh_count in ((True, 2), (False, 1)):
        history = DuplicateHistory(is_partitioned=is_partitioned)
        messages = [IncomingMessage(b"x", facts=MessageKeys("1", None, key)) for key in "ab"]
        assert len(history.remove_duplicates(messages, 60_000)) == fresh_count


def test_an_id_takes_sixteen_bytes_on_disk(driver: Driver) -> None:
    """M3: whatever its length."""
    sent(driver, *(f"{'x' * 120}{number}=body" for number in range(100)))
    driver.store.close()
    ((row,),) = driver.store.open().seen.values()
    assert len(row.digests) == 100 * DIGEST_BYTES


@pytest.mark.parametrize(
    "change", [{"requires_duplicate_detection": False}, {"path": "other"}], ids=str
)
def test_what_is_for_life_cannot_be_changed(driver: Driver, change: dict[str, object]) -> None:
    """M5: refused with a sentence; everything else can be."""
    driver.store.close()
    catalogue = Catalogue(driver.store.open(), Random(1))
    queue = catalogue.find("orders")
    assert queue is not None
    values = {"path": "orders", "requires_duplicate_detection": True}
    wrong = QueueDescription(**{**values, **change})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="cannot be changed"):
        catalogue.plan().update(queue.queue_id, queue.description, wrong, 0)
    draft = catalogue.plan()
    right = QueueDescription(max_delivery_count=3, **values)  # type: ignore[arg-type]
    draft.update(queue.queue_id, queue.description, right, 0)
    assert draft.ops


def test_a_due_message_is_in_the_batch_in_which_it_leaves_the_schedule(driver: Driver) -> None:
    """M8: also while thousands wait for an original on its way; a crash would lose it between."""
    later = send(driver, "due", due_s=1)
    driver.commit()
    assert later.is_stored
    driver.read()
    send(driver, "1=first")
    tell = driver.begin_commit()
    for number in range(4 * ADMITTED_IN_STEP):
        send(driver, "1=again", f"x{number}=behind it")
    driver.at(2)
    driver.queue.handle_timer(driver.now)
    driver.read()
    tell()
    driver.begin_commit_of_now()
    driver.restart()
    assert "due" in bodies(driver.receive(driver.client()))
