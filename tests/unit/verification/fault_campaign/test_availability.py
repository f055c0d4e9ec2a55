"""Which failed sends are excused, and by what; and what the prober may notice."""

from __future__ import annotations

from typing import Any

import pytest

from verification.fault_campaign.availability import (
    LATE_S,
    PROBE_RECOVERY_S,
    PROBES_MIN,
    RECOVERY_S,
    failed_sends,
    late_sends,
    probed,
)
from verification.fault_campaign.history import Event


def event(what: Any, type: Any, at_s: float, process: str, **facts: Any) -> Event:
    return Event(what=what, type=type, at_s=at_s, process=process, **facts)


def fault(name: str, process: str, place: str = "", begin_s: float = 10.0) -> list[Event]:
    facts = {"place": place, "detail": name}
    return [
        event("fault", "invoke", begin_s, process, **facts),
        event("fault", "ok", begin_s + 2, process, **facts),
    ]


def failed(
    at_s: float = 11.0, detail: str = "BacklogExhausted", sender: str = "sender-1.0"
) -> list[Event]:
    facts = {"values": (f"{sender}-1",), "place": "returns"}
    return [
        event("send", "invoke", at_s, sender, **facts),
        event("send", "info", at_s + 0.5, sender, detail=detail, **facts),
    ]


AWAY = fault("kill primary", "primary")


def told(*parts: list[Event]) -> bool:
    """Whether the failed send was excused."""
    unavailable, excused = failed_sends(
        sorted((each for part in parts for each in part), key=lambda each: each.at_s)
    )
    assert len(unavailable) + excused.total() == 1
    return not unavailable


def test_a_send_that_fails_while_nothing_is_wrong_is_unavailable() -> None:
    """P10: the caller sees an error only if the message is in neither place."""
    assert not told(failed())


@pytest.mark.parametrize(
    ("trouble", "detail", "is_excused"),
    [
        ([*AWAY, *fault("kill secondary", "secondary")], "BacklogExhausted", True),
        ([*AWAY, *fault("line: cut", "sender-1", "secondary")], "OperationTimeout", True),
        (fault("stop sender", "sender-1"), "OperationTimeout", True),
        ([*AWAY, *fault("key: rotated", "sender", "secondary")], "BacklogExhausted", True),
        (fault("disk: full", "primary"), "ServerBusy", True),
        (fault("destination: deleted", "primary", "returns"), "EntityNotFound", True),
        (fault("disk: full", "primary"), "ServiceBusServerBusyError", True),
        (
            fault("destination: deleted", "primary", "returns"),
            "MessagingEntityNotFoundError",
            True,
        ),
        (fault("clock: primary jumps", "primary"), "OperationTimeout", False),
        (fault("clock: secondary jumps", "secondary"), "AccessRefused", False),
        # The primary is well: nobody needs the backlog.
        (fault("kill secondary", "secondary"), "AuthenticationFailed", False),
        (fault("line: cut", "sender-1", "secondary"), "OperationTimeout", False),
        # What the pair is there for.
        (fault("kill primary", "primary"), "OperationTimeout", False),
        (fault("line: cut", "sender-1", "primary"), "OperationTimeout", False),
        (fault("key: rotated", "sender", "primary"), "AuthenticationFailed", False),
        (fault("key: rotated", "sender", "primary"), "AccessRefused", False),
        (fault("clock: primary jumps", "primary"), "AccessRefused", False),
        # One queue of several, another sender, another entity, another error.
        (fault("backlog: deleted", "secondary", "primary/x/0"), "EntityNotFound", False),
        (fault("line: cut", "sender-2", "secondary"), "OperationTimeout", False),
        (fault("destination: deleted", "primary", "orders"), "EntityNotFound", False),
        (fault("disk: full", "primary"), "OperationTimeout", False),
    ],
)
def test_only_what_stood_in_the_way_is_an_excuse(
    trouble: list[Event], detail: str, is_excused: bool
) -> None:
    assert told(trouble, failed(detail=detail)) == is_excused


def test_an_excuse_is_good_for_its_time_only() -> None:
    trouble = [*AWAY, *fault("kill secondary", "secondary")]
    assert told(trouble, failed(at_s=12.0 + RECOVERY_S - 1))
    assert not told(trouble, failed(at_s=12.0 + RECOVERY_S + 1))
    assert not told(trouble, failed(at_s=9.0))


def test_the_rest_of_a_batch_that_was_partly_sent_is_judged() -> None:
    facts = {"process": "sender-1.0", "place": "returns"}
    events = [
        Event(what="send", type="invoke", at_s=1.0, values=("a", "b"), **facts),
        Event(what="send", type="ok", at_s=2.0, values=("a",), **facts),
        Event(what="send", type="fail", at_s=2.0, values=("b",), **facts, detail="QuotaExceeded"),
    ]
    assert failed_sends(events)[0] == ["b to returns: QuotaExceeded"]


def test_who_goes_on_after_a_stop_has_no_excuse_for_new_sends() -> None:
    stop = fault("stop sender", "sender-1")
    assert told(stop, failed(at_s=11.9))
    assert not told(stop, failed(at_s=12.1))


def sending(took_s: float | None, sender: str = "sender-1.0") -> list[Event]:
    facts = {"values": (f"{sender}-1",), "place": "orders"}
    begun = event("send", "invoke", 11.0, sender, **facts)
    return (
        [begun] if took_s is None else [begun, event("send", "ok", 11.0 + took_s, sender, **facts)]
    )


@pytest.mark.parametrize(
    ("events", "is_late"),
    [
        pytest.param(sending(10.0 + LATE_S - 1), False, id="in time"),
        pytest.param(sending(10.0 + LATE_S + 1), True, id="too late"),
        pytest.param(sending(None), True, id="never"),
        pytest.param(
            [*sending(None), event("kill", "ok", 12.0, "sender-1.0")], False, id="it was killed"
        ),
        pytest.param(
            [*sending(None), event("kill", "ok", 12.0, "sender-2.0")], True, id="another was"
        ),
        pytest.param(
            [*fault("stop sender", "sender-1"), *sending(30.0)], False, id="it was stopped"
        ),
        pytest.param([*fault("stop sender", "sender-2"), *sending(30.0)], True, id="another was"),
        pytest.param([*AWAY, *sending(30.0)], True, id="the primary's trouble is no excuse"),
    ],
)
def test_a_send_ends_within_its_time(events: list[Event], is_late: bool) -> None:
    """F6: whatever becomes of it."""
    events = sorted(events, key=lambda each: each.at_s)
    assert bool(late_sends(events, send_s=10.0)) is is_late


def test_a_clock_that_jumps_is_no_excuse() -> None:
    assert not told(fault("clock: sender jumps", "sender-1"), failed())


def test_who_is_held_on_the_backlog_has_one_way_only() -> None:
    trouble = fault("kill secondary", "secondary")
    assert told(trouble, failed(sender="sender-3.0"))
    assert not told(trouble, failed(sender="sender-2.0"))


# -- the prober -----------------------------------------------------------------------------------


def probes(took_s: float, count: int = 200, begin_s: float = 20.0) -> list[Event]:
    return [
        event("probe", "ok", begin_s + number * 0.1, "prober-1.0", took_s=took_s)
        for number in range(count)
    ]


def test_a_prober_in_calm_is_fast() -> None:
    disturbed, told = probed(probes(0.01))
    assert not disturbed
    assert told == {"calm": 0.01, "all": 0.01}
    assert probed(probes(0.5))[0] == ["p99 calm: 500 ms"]


def test_the_trouble_of_others_may_slow_it_down_and_not_stop_it() -> None:
    trouble = fault("kill sender", "sender-1", begin_s=10.0)[:1]  # It never ends.
    assert not probed([*trouble, *probes(0.5)])[0]
    assert probed([*trouble, *probes(1.5)])[0] == ["p99 all: 1500 ms"]
    silent = event("probe", "info", 30.0, "prober-1.0", took_s=5.0, detail="OperationTimeout")
    assert len(probed([*trouble, *probes(0.01, begin_s=31.0), silent])[0]) == 1


def test_what_happens_to_its_broker_does_not_count() -> None:
    silent = event("probe", "info", 11.0, "prober-1.0", took_s=0.5, detail="CommunicationError")
    late = probes(5.0, 1, 12.0 + PROBE_RECOVERY_S)
    own = fault("kill primary", "primary")
    assert not probed([*own, silent, *late, *probes(0.01)])[0]
    queue = fault("destination: deleted", "primary", "returns")
    assert probed([*queue, silent, *probes(0.01)])[0]


def test_a_standstill_is_more_than_one_slow_probe() -> None:
    """The prober waits for its answer: those who would have come meanwhile are counted."""
    standstill = probes(5.0, 1, begin_s=70.0)
    disturbed, told = probed([*probes(0.01, 1_000), *standstill])
    assert disturbed == ["p99 calm: 3500 ms", "p99 all: 3500 ms"]
    # 34 of 1,034 samples are its own; ten of them are above the 99th percentile.
    assert told["calm"] == pytest.approx(5.0 - 10 * 0.15)
    short = probes(0.2, 1, begin_s=70.0)
    assert not probed([*probes(0.01, 1_000), *short])[0]


def test_a_standstill_of_its_broker_stays_excused_as_a_whole() -> None:
    own = fault("kill primary", "primary", begin_s=66.0)
    standstill = probes(5.0, 1, begin_s=70.0)
    assert not probed([*own, *probes(0.01, 300), *standstill])[0]


def test_a_prober_that_hardly_probed_is_a_complaint_where_there_was_one() -> None:
    few = probes(0.01, PROBES_MIN - 1)
    assert probed(few) == ([], {})
    assert probed(few, is_expected=True)[0] == ["99 probes that count, where 100 are needed"]
    assert probed(probes(1.5, PROBES_MIN - 1), is_expected=True)[1] == {}, "missed ones are none"
    assert not probed(probes(0.01, PROBES_MIN), is_expected=True)[0]
