"""Cost reports made by hand, until they look like those of the job on Spark.

outage_in_a_month   two pairs, thirty days, 45 minutes without the first primary
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from twinbus.cost.report import (
    CostReport,
    DetourCost,
    KindCost,
    OpenRun,
    PairCost,
    PricesUsed,
    Quality,
    Slice,
)

PRICE = Decimal("0.0000008")
PRICES = PricesUsed(
    name="standard",
    currency="USD",
    source="https://azure.microsoft.com/pricing/details/service-bus/",
    dated="2026-11-01",
)
BEGINS = datetime(2026, 11, 1, tzinfo=UTC)
OUTAGE_DAY = 15
ENTITIES = ("orders", "payments", "shipments", "invoices", "returns", "audit-trail", "prices")
HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "</title></svg><script>alert(3)</script>",
    "&lt;b&gt; 100% --> ]]> ${x} {{y}}",
    "הזמנות/דחופות/2026",
    "gnp.\u202egnirts\u202c\u2066x\u2069\u0000\u200b\ud800",
    "注文" * 130,
    "W" * 260,
    "a/" + "very-long-segment/" * 14,
    " ",
    "javascript:alert(4)",
    "🐇" * 60,
)


def cost_of(units: int) -> Decimal:
    return units * PRICE


def line(units: int, **keys: str) -> Slice:
    """A slice of messages of 2 KB."""
    return Slice(
        keys=keys,
        calls=units // 20 + 1,
        messages=units,
        units=units,
        bytes_in=units * 2_000,
        bytes_out=units * 2_050,
        cost=cost_of(units),
    )


def total_of(slices: tuple[Slice, ...]) -> Slice:
    return Slice(
        keys={},
        calls=sum(each.calls for each in slices),
        messages=sum(each.messages for each in slices),
        units=sum(each.units for each in slices),
        bytes_in=sum(each.bytes_in for each in slices),
        bytes_out=sum(each.bytes_out for each in slices),
        cost=sum((each.cost for each in slices), Decimal(0)),
    )


def empty() -> CostReport:
    """A range in which nothing was metered."""
    return CostReport(
        begins=BEGINS,
        ends=BEGINS + timedelta(days=1),
        by=("entity", "day"),
        prices=PRICES,
        slices=(),
        total=Slice(keys={}),
        base_cost=Decimal(0),
        step_s=3_600,
        kinds=(),
        detours=(),
        idle_share=0.0,
        idle_cost=Decimal(0),
        entities=(),
        pairs=(),
        quality=Quality(),
    )


def _kinds_of_day(number: int) -> dict[str, int]:
    weekend = (BEGINS + timedelta(days=number)).weekday() >= 5
    sends = (700_000 if weekend else 1_900_000) + number * 13_777 % 240_000
    detoured = 540_000 if number == OUTAGE_DAY else 0
    return {
        "send": sends + detoured,
        "receive": sends + detoured,
        "empty-receive": 42_000 + (number * 971) % 9_000,
        "ping": 1_080 if detoured else 0,
        "peek": 310,
        "management": 2_900,
        "administration": 120,
        "settle": 0,
    }


def outage_in_a_month() -> CostReport:
    """Thirty days by entity; on the sixteenth contoso's primary was away for 45 minutes."""
    days = [BEGINS + timedelta(days=number) for number in range(30)]
    kinds = tuple(
        KindCost(at=at, operation=operation, units=units, cost=cost_of(units))
        for number, at in enumerate(days)
        for operation, units in _kinds_of_day(number).items()
    )
    units = sum(kind.units for kind in kinds)
    idle = sum(kind.units for kind in kinds if kind.operation == "empty-receive")
    detour_units = 2 * 540_000
    parts = [31, 22, 16, 12, 8, 4, 3]
    slices = [
        line(units * part // 100, namespace="contoso", entity=name)
        for name, part in zip(ENTITIES, parts, strict=True)
    ]
    slices += [
        line(detour_units // 10 + n, namespace="fabrikam",
             entity=f"contoso/x-servicebus-transfer/{n}")
        for n in range(10)
    ]  # fmt: skip
    ordered = tuple(sorted(slices, key=lambda each: -each.cost))
    outage = days[OUTAGE_DAY]
    return replace(
        empty(),
        ends=BEGINS + timedelta(days=30),
        by=("namespace", "entity"),
        slices=ordered,
        total=total_of(ordered),
        base_cost=Decimal("9.81"),
        step_s=86_400,
        kinds=kinds,
        detours=(
            DetourCost(at=outage, pair="contoso", sent=540_000, received=486_200,
                       cost=cost_of(540_000 + 486_200)),
            DetourCost(at=days[OUTAGE_DAY + 1], pair="contoso", sent=0, received=53_800,
                       cost=cost_of(53_800)),
            DetourCost(at=days[22], pair="adatum", sent=38_200, received=38_200,
                       cost=cost_of(76_400)),
        ),
        idle_share=idle / units,
        idle_cost=cost_of(idle),
        entities=ordered[:12],
        pairs=(
            PairCost(pair="contoso", detoured_messages=540_000, detour_units=detour_units,
                     ping_units=1_080, polling_units=1_008_000, other_units=3_900,
                     cost=cost_of(detour_units + 1_080 + 1_008_000 + 3_900)),
            PairCost(pair="adatum", detoured_messages=38_200, detour_units=76_400,
                     ping_units=120, polling_units=382_000, other_units=2_100,
                     cost=cost_of(76_400 + 120 + 382_000 + 2_100)),
        ),
        quality=Quality(
            records=412_908,
            duplicates=312,
            late=47,
            damaged={"not JSON": 3, "operation that nobody knows": 1},
            open_runs=(
                OpenRun(namespace="contoso", run="5f0c9a31", source="broker",
                        last_at=outage + timedelta(hours=9, minutes=12, seconds=10),
                        units_missing_max=100_000),
            ),
        ),
    )  # fmt: skip


def outage_by_the_minute() -> CostReport:
    """Two hours around the outage, in minutes: out at 10:00, back at 10:45, drained at 11:06."""
    begins = BEGINS + timedelta(days=OUTAGE_DAY, hours=9, minutes=30)
    kinds, detours = [], []
    for minute in range(120):
        at = begins + timedelta(minutes=minute)
        is_out, is_draining = 30 <= minute < 75, 75 <= minute < 96
        sent, received = 12_000 if is_out else 0, 25_700 if is_draining else 0
        amounts = {
            "send": 12_000 + received,
            "receive": (0 if is_out else 12_000) + 2 * received,
            "empty-receive": 400 if is_out else 40,
            "ping": 24 if is_out else 0,
        }
        kinds += [
            KindCost(at=at, operation=operation, units=units, cost=cost_of(units))
            for operation, units in amounts.items()
        ]
        if sent or received:
            detours.append(
                DetourCost(at=at, pair="contoso", sent=sent, received=received,
                           cost=cost_of(sent + received))
            )  # fmt: skip
    return replace(
        outage_in_a_month(),
        begins=begins,
        ends=begins + timedelta(hours=2),
        step_s=60,
        kinds=tuple(kinds),
        detours=tuple(detours),
        quality=Quality(records=48_112),
    )


def hostile() -> CostReport:
    """Names that want out of their places, in every place that shows one."""
    month = outage_in_a_month()
    slices = tuple(
        line(10_000_000 // (n + 1), namespace=HOSTILE[-n - 1], entity=name)
        for n, name in enumerate(HOSTILE)
    )
    return replace(
        month,
        slices=slices,
        total=total_of(slices),
        entities=slices,
        prices=replace(PRICES, name=HOSTILE[0], source="javascript:alert(5)"),
        detours=tuple(replace(each, pair=HOSTILE[2]) for each in month.detours),
        pairs=tuple(replace(month.pairs[0], pair=name) for name in HOSTILE),
        quality=replace(
            month.quality,
            damaged=dict.fromkeys(HOSTILE, 1),
            open_runs=tuple(
                replace(month.quality.open_runs[0], namespace=name, run=name) for name in HOSTILE
            ),
        ),
    )


def one_slice() -> CostReport:
    """One entity, one step of time."""
    only = (line(1, entity="orders", day="2026-11-01"),)
    return replace(
        empty(),
        slices=only,
        total=total_of(only),
        kinds=(KindCost(at=BEGINS, operation="send", units=1, cost=cost_of(1)),),
        step_s=86_400,
        entities=(line(1, namespace="contoso", entity="orders"),),
        quality=Quality(records=1),
    )


def many_entities(count: int = 500) -> CostReport:
    slices = tuple(
        line(2_000_000 // (n + 1), namespace="contoso", entity=f"tenant-{n:04}/orders")
        for n in range(count)
    )
    return replace(outage_in_a_month(), slices=slices, total=total_of(slices), entities=slices[:12])


def scaled(report: CostReport, factor: Decimal) -> CostReport:
    """The same operations at other prices."""

    def line_(each: Slice) -> Slice:
        return replace(each, cost=each.cost * factor)

    return replace(
        report,
        slices=tuple(map(line_, report.slices)),
        total=line_(report.total),
        base_cost=report.base_cost * factor,
        kinds=tuple(replace(each, cost=each.cost * factor) for each in report.kinds),
        detours=tuple(replace(each, cost=each.cost * factor) for each in report.detours),
        idle_cost=report.idle_cost * factor,
        entities=tuple(map(line_, report.entities)),
        pairs=tuple(replace(each, cost=each.cost * factor) for each in report.pairs),
    )


EVERY_REPORT = {
    "empty": empty,
    "one-slice": one_slice,
    "month": outage_in_a_month,
    "minutes": outage_by_the_minute,
    "hostile": hostile,
    "many": many_entities,
    "huge": lambda: scaled(outage_in_a_month(), Decimal(10) ** 9),
    "tiny": lambda: scaled(outage_in_a_month(), Decimal(10) ** -9),
    "free": lambda: scaled(outage_in_a_month(), Decimal(0)),
}
