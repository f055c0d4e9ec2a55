"""What a pair and an outage will cost."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.cost.estimate import HOUR_MS, CostKind, EstimateInput, estimate, idle_receives
from twinbus.cost.price_sheets import load_prices
from twinbus.cost.prices import GB, PriceSheet, Tier
from twinbus.cost.units import (
    NOTHING,
    UNIT_BYTES,
    Operation,
    messages_in,
    messages_out,
    units_of,
    units_of_message,
)
from twinbus.errors import ConfigurationError

MINUTE_MS = 60_000
STANDARD, BASIC = load_prices("standard"), load_prices("basic")
# The question of the documentation (docs/COSTS.md).
ASKED = EstimateInput(
    backlog_queues=10,
    poll_ms=15 * MINUTE_MS,
    rate_per_s=Fraction(200),
    size_bytes=2048,
    outage_ms=45 * MINUTE_MS,
    entities=12,
    senders=8,
    syphons=3,
)
sizes = st.integers(0, 10 * UNIT_BYTES)


def units(plan: EstimateInput, prices: PriceSheet = STANDARD) -> dict[CostKind, int]:
    return {line.kind: line.units for line in estimate(plan, prices).outage.lines}


# -- the figures of the documents ---------------------------------------------------------


def test_idle_receives_are_those_of_the_documentation() -> None:
    """C2: 40 an hour, 960 a day, 28,800 in 30 days (Y3)."""
    idle = estimate(
        EstimateInput(backlog_queues=10, poll_ms=15 * MINUTE_MS, syphons=1), STANDARD
    ).idle
    assert [(each.period, each.receives) for each in idle] == [
        ("hour", 40),
        ("day", 960),
        ("30 days", 28_800),
    ]


@pytest.mark.parametrize(
    ("poll_minutes", "a_month"),
    [(5, 86_400), (10, 43_200), (15, 57_600), (20, 43_200), (30, 43_200)],
)
def test_where_idle_links_end_a_long_poll_is_several_receives(
    poll_minutes: int, a_month: int
) -> None:
    """C2, C3: Azure ends a link after ten minutes, and a new one has a grant of its own."""
    idle = estimate(EstimateInput(poll_ms=poll_minutes * MINUTE_MS), STANDARD).idle
    assert idle[-1].detached_receives == a_month


@pytest.mark.parametrize(("size", "charges"), [(0, 4), (65_536, 4), (65_537, 8), (262_144, 16)])
def test_a_detoured_message_is_charged_four_times(size: int, charges: int) -> None:
    """C2: into the backlog, out of it, into the primary, out of it; for each 64 KB."""
    assert estimate(replace(ASKED, size_bytes=size), STANDARD).outage.charges_per_message == charges


def test_the_outage_by_kind_of_operation() -> None:
    """C2, C3: four charges a message, pings by entity and sender, polls by syphon and queue."""
    outage = estimate(ASKED, STANDARD).outage
    assert outage.messages == 200 * 45 * 60
    assert {line.kind: line.units for line in outage.lines} == {
        CostKind.SEND_PRIMARY: 540_000,
        CostKind.RECEIVE_PRIMARY: 540_000,
        CostKind.IDLE_POLLS: 10 * 3 * 3,
        CostKind.PAIRING: 10 + 8 * 11,
        CostKind.SEND_BACKLOG: 540_000,
        CostKind.RECEIVE_BACKLOG: 540_000,
        CostKind.PINGS: 12 * 8 * 45,
        CostKind.WATCH: 8 * 14,
        CostKind.WATCH_PEEKS: 10 * 8 * 14,
    }
    assert outage.total()[0] == outage.total(anyway=True)[0] + outage.total(anyway=False)[0]


def test_what_a_pair_costs_without_an_outage_is_not_because_of_one() -> None:
    """C3: idle polls and the pairing are paid anyway; pings, watch and detour are not."""
    outage = estimate(ASKED, STANDARD).outage
    assert outage.total(anyway=True)[0] == 2 * 540_000 + 90 + 98
    assert outage.total(anyway=False)[0] == 2 * 540_000 + 4_320 + 1_232
    quiet = estimate(replace(ASKED, outage_ms=ASKED.failover_ms), STANDARD).outage
    assert quiet.total(anyway=False) == (0, 0)


def test_a_batch_saves_calls_and_no_charges() -> None:
    """C2: the syphon moves a hundred at a time, and pays for each."""
    lines = {line.kind: line for line in estimate(replace(ASKED, batch=100), STANDARD).outage.lines}
    assert lines[CostKind.RECEIVE_BACKLOG].amount.calls == 5_400
    assert lines[CostKind.RECEIVE_BACKLOG].units == 540_000
    assert units(replace(ASKED, batch=1)) == units(ASKED)


def test_a_sheet_that_charges_completing_makes_it_six() -> None:
    """C2: what is charged is the sheet's; what the documents count is four."""
    own = replace(STANDARD, charged=STANDARD.charged | {Operation.SETTLE})
    assert estimate(ASKED, own).outage.charges_per_message == 6
    assert units(ASKED, own)[CostKind.COMPLETE_BACKLOG] == 540_000


# -- time ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outage_s", "failover_s", "ping_s", "pings", "away_s"),
    [
        (0, 60, 60, 0, 0),
        (60, 60, 60, 0, 0),  # shorter than the failover interval: nothing is diverted
        (61, 60, 60, 2, 120),  # one at once, one that finds the primary back
        (120, 60, 60, 2, 120),
        (45 * 60, 60, 60, 45, 45 * 60),
        (45 * 60, 0, 60, 46, 45 * 60),
        (45 * 60 + 1, 60, 60, 46, 46 * 60),
    ],
)
def test_pings_begin_at_once_and_the_last_one_ends_the_detour(
    outage_s: int, failover_s: int, ping_s: int, pings: int, away_s: int
) -> None:
    """C2: pings as P11 sends them."""
    plan = replace(
        ASKED, outage_ms=outage_s * 1000, failover_ms=failover_s * 1000, ping_ms=ping_s * 1000
    )
    assert (plan.pings, plan.diverted_until_ms) == (pings, away_s * 1000)
    assert plan.messages == 200 * away_s


@pytest.mark.parametrize(
    ("outage_s", "looks"),
    [
        (0, 0),
        (60, 0),  # nothing is diverted, nobody looks
        (61, 4),  # diverted for a minute: at 0, 15 and 45 s, and once when it is over
        (45 * 60, 6 + 7 + 1),  # up to 465 s, then every five minutes
        (62 * 60, 6 + 10 + 1 + 1),  # and when the oldest message is an hour old
    ],
)
def test_every_sender_looks_at_the_backlog_while_it_is_diverted(outage_s: int, looks: int) -> None:
    """C2: as P16 watches: each look lists the queues and peeks at each one's oldest message."""
    plan = replace(ASKED, outage_ms=outage_s * 1000)
    assert plan.backlog_readings == looks
    lines = {line.kind: line for line in estimate(plan, STANDARD).outage.lines}
    for kind, calls in ((CostKind.WATCH, 8 * looks), (CostKind.WATCH_PEEKS, 10 * 8 * looks)):
        assert lines[kind].units == lines[kind].amount.calls == calls


def test_a_look_shows_a_message_of_the_size_that_is_sent() -> None:
    """C2: the most there can be; a message of 65 KB is two steps for a peek, too."""
    large = replace(ASKED, size_bytes=65 * 1024)
    lines = {line.kind: line for line in estimate(large, STANDARD).outage.lines}
    assert lines[CostKind.WATCH_PEEKS].units == 2 * 1_120
    assert lines[CostKind.WATCH_PEEKS].amount.bytes_out == 1_120 * 65 * 1024


def test_nobody_peeks_where_nothing_is() -> None:
    """C2: without messages the counts are all that is asked for; three fill three queues."""
    assert units(replace(ASKED, rate_per_s=Fraction(0)))[CostKind.WATCH_PEEKS] == 0
    assert units(replace(ASKED, rate_per_s=Fraction(3, 2_700)))[CostKind.WATCH_PEEKS] == 3 * 8 * 14


def test_the_watch_is_a_small_part() -> None:
    """C3: less than pings, and far below the messages."""
    paid = units(ASKED)
    assert paid[CostKind.WATCH] + paid[CostKind.WATCH_PEEKS] < 2_000 < paid[CostKind.PINGS]


def test_a_poll_counts_when_it_ends() -> None:
    """C2: eight waits of seven minutes end within an hour, the ninth does not."""
    plan = replace(ASKED, poll_ms=7 * MINUTE_MS, syphons=1)
    assert idle_receives(plan, 0, HOUR_MS) == 8 * 10
    assert idle_receives(plan, HOUR_MS, HOUR_MS + 3 * MINUTE_MS) == 10


@given(
    st.lists(st.integers(0, 40 * 24 * HOUR_MS), min_size=1, max_size=6),
    st.integers(1_000, 2 * HOUR_MS),
    st.integers(1, 20),
)
def test_idle_receives_of_days_add_up_to_their_month(
    cuts: list[int], poll_ms: int, syphons: int
) -> None:
    """C1: additive over time, also where a poll spans midnight."""
    plan = replace(ASKED, poll_ms=poll_ms, syphons=syphons)
    marks = sorted({0, *cuts})
    parts = [idle_receives(plan, begin, end) for begin, end in pairwise(marks)]
    assert sum(parts) == idle_receives(plan, 0, marks[-1])


# -- units --------------------------------------------------------------------------------


@given(st.lists(sizes, max_size=30), st.integers(0, 30))
def test_units_do_not_depend_on_how_messages_are_batched(batch: list[int], cut: int) -> None:
    """C1: additive over splits of a batch."""
    assert units_of(batch) == units_of(batch[:cut]) + units_of(batch[cut:])
    assert units_of(batch) == sum(map(units_of_message, batch))


@given(sizes, sizes)
def test_units_are_monotone_in_size(size: int, more: int) -> None:
    """C1: a larger message never costs less, and one step costs one unit."""
    assert 1 <= units_of_message(size) <= units_of_message(size + more)
    assert units_of_message(size + UNIT_BYTES) == max(1, units_of_message(size)) + bool(size)


@given(st.integers(0, 1000), st.integers(0, 1000), sizes, st.integers(1, 50))
def test_messages_that_are_expected_are_counted_like_those_that_came(
    one: int, more: int, size: int, batch: int
) -> None:
    """C1: whatever the batch, units, messages and bytes are those of the messages."""
    for expected in (messages_in, messages_out):
        whole = expected(one + more, size, batch)
        parts = expected(one, size).plus(expected(more, size))
        assert whole[1:] == parts[1:] and whole.calls <= parts.calls
        assert whole.units == units_of([size] * (one + more))
    assert messages_in(0, size, batch) == NOTHING


plans = st.builds(
    EstimateInput,
    backlog_queues=st.integers(1, 100),
    poll_ms=st.integers(1_000, 2 * HOUR_MS),
    rate_per_s=st.fractions(0, 1_000, max_denominator=1_000),
    size_bytes=sizes,
    outage_ms=st.integers(0, 24 * HOUR_MS),
    entities=st.integers(1, 50),
    senders=st.integers(1, 50),
    syphons=st.integers(1, 10),
    ping_ms=st.integers(1_000, HOUR_MS),
    failover_ms=st.integers(0, HOUR_MS),
    batch=st.integers(1, 1_000),
    used=st.none() | st.integers(0, 3_000_000_000),
)


@settings(deadline=None)
@given(plans, st.sampled_from([STANDARD, BASIC, load_prices("premium")]))
def test_an_estimate_adds_up(plan: EstimateInput, prices: PriceSheet) -> None:
    """C3: the lines are the total, priced one after the other or all at once."""
    made = estimate(plan, prices)
    outage = made.outage
    billed, cost = outage.total()
    assert cost == prices.charge(billed, made.before.units)
    assert cost == outage.total(anyway=True)[1] + outage.total(anyway=False)[1]


@settings(deadline=None)
@given(
    plans,
    st.sampled_from(["size_bytes", "outage_ms", "entities", "senders", "syphons"]),
    st.integers(0, 50),
)
def test_more_of_anything_never_costs_less(plan: EstimateInput, name: str, more: int) -> None:
    """C3: monotone; ``used`` stands still, because later tiers are cheaper."""
    plan = replace(plan, used=0)
    larger = replace(plan, **{name: getattr(plan, name) + more})
    assert estimate(plan, BASIC).outage.total()[1] <= estimate(larger, BASIC).outage.total()[1]
    assert units(plan)[CostKind.PINGS] <= units(larger)[CostKind.PINGS]


# -- prices -------------------------------------------------------------------------------


def test_the_overhead_has_the_price_of_its_tier() -> None:
    """C3: 30 days of this traffic have used up what is included."""
    assert estimate(ASKED, STANDARD).before.units == 2 * 200 * 30 * 86_400
    overhead, cost = estimate(ASKED, STANDARD).outage.total(anyway=False)
    assert cost == overhead * Decimal("0.5") / 1_000_000
    assert estimate(replace(ASKED, used=0), STANDARD).outage.total()[1] == 0


def test_what_is_paid_anyway_uses_up_the_rest_of_a_tier_first() -> None:
    """C3: the last included operations are those of the messages, the overhead is paid."""
    plan = replace(ASKED, used=STANDARD.included - (2 * 540_000 + 188))
    outage = estimate(plan, STANDARD).outage
    assert outage.total(anyway=True)[1] == 0
    overhead, cost = outage.total(anyway=False)
    assert cost == overhead * Decimal("0.8") / 1_000_000


def test_what_leaves_is_paid_by_the_gb() -> None:
    """C3: receives hand out bytes, sends do not."""
    own = replace(BASIC, transfer_out=(Tier(None, Decimal("0.1")),))
    lines = {line.kind: line for line in estimate(ASKED, own).outage.lines}
    plain = {line.kind: line for line in estimate(ASKED, BASIC).outage.lines}
    paid = {kind: line.cost - plain[kind].cost for kind, line in lines.items()}
    gb = Decimal(540_000 * 2048) / 1_000_000_000
    assert paid.pop(CostKind.RECEIVE_PRIMARY) == paid.pop(CostKind.RECEIVE_BACKLOG) == gb / 10
    assert paid.pop(CostKind.WATCH_PEEKS) == Decimal(1_120 * 2048) / 1_000_000_000 / 10
    assert set(paid.values()) == {0}


def test_the_month_before_has_sent_bytes_out_too() -> None:
    """C3: 30 days of this traffic are 1,062 GB out: the free first 100 have been used up."""
    tiers = (Tier(100 * GB, Decimal(0)), Tier(None, Decimal("0.08")))
    own = replace(STANDARD, transfer_out=tiers)
    free = replace(STANDARD, transfer_out=(Tier(None, Decimal(0)),))

    def transfer(plan: EstimateInput) -> Decimal:
        made, plain = (estimate(plan, prices).outage.total()[1] for prices in (own, free))
        return made - plain

    assert estimate(ASKED, own).before.bytes_out == 200 * 2048 * 30 * 86_400
    out = (2 * 540_000 + 1_120) * 2048
    assert transfer(ASKED) == out * Decimal("0.08") / GB
    # A month of one's own has sent out what so many operations of this traffic do.
    assert transfer(replace(ASKED, used=0)) == 0
    used = estimate(replace(ASKED, used=100_000_000), own).before
    assert (used.units, used.bytes_out) == (100_000_000, 50_000_000 * 2048)
    assert transfer(replace(ASKED, used=100_000_000)) > 0


@pytest.mark.parametrize(
    ("charged", "each"),
    [
        ({Operation.SEND, Operation.RECEIVE, Operation.SETTLE}, 3),
        ({Operation.SEND}, 1),
        ({Operation.PING}, 0),
    ],
)
def test_the_month_before_is_charged_as_the_sheet_says(charged: set[Operation], each: int) -> None:
    """C3: 6 million messages are 18 million operations where completing is charged."""
    own = replace(STANDARD, charged=frozenset(charged))
    plan = replace(ASKED, rate_per_s=Fraction(6_000_000, 30 * 86_400))
    assert estimate(plan, own).before.units == 6_000_000 * each
    assert estimate(plan, own).before.bytes_out == 6_000_000 * 2048
    assert estimate(replace(plan, used=18), own).before.units == 18


def test_what_if_covers_what_was_asked() -> None:
    """C3: across syphon counts and poll intervals, with one's own among them."""
    made = estimate(replace(ASKED, syphons=4, poll_ms=7 * MINUTE_MS), STANDARD)
    asked = [each for each in made.what_if if (each.syphons, each.poll_ms) == (4, 7 * MINUTE_MS)]
    assert [(each.receives, each.cost) for each in asked] == [
        (made.idle[-1].receives, made.idle[-1].cost)
    ]
    assert len({(each.syphons, each.poll_ms) for each in made.what_if}) == len(made.what_if) == 30
    assert [each.receives for each in made.what_if if each.syphons == 1][-2:] == [28_800, 14_400]


# -- hostile ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backlog_queues", 0),
        ("backlog_queues", 10**400),
        ("poll_ms", 0),
        ("poll_ms", 999),
        ("rate_per_s", Fraction(-1)),
        ("size_bytes", -1),
        ("size_bytes", 10**12),
        ("outage_ms", -1),
        ("outage_ms", 10**15),
        ("entities", 0),
        ("senders", -3),
        ("syphons", 0),
        ("ping_ms", 0),
        ("batch", 0),
        ("used", -1),
    ],
)
def test_what_nobody_can_mean_is_refused(name: str, value: int | Fraction) -> None:
    """C3: a sentence and a hint with the limits."""
    with pytest.raises(ConfigurationError, match="Invalid value") as caught:
        replace(ASKED, **{name: value})
    assert caught.value.hint.startswith("Use ")


def test_what_is_too_much_together_is_refused() -> None:
    """C3: each number is possible, their product is not."""
    plan = replace(ASKED, rate_per_s=Fraction(10**9), size_bytes=100 * 2**20, used=0)
    with pytest.raises(ConfigurationError, match="cannot be priced"):
        estimate(plan, STANDARD)
