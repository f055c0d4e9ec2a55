"""What operations cost: price sheets and the arithmetic on them."""

from __future__ import annotations

from decimal import Decimal, localcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.cost.price_sheets import SHEETS, load_prices
from twinbus.cost.prices import (
    BYTES_MAX,
    UNITS_MAX,
    Payer,
    PriceSheet,
    Tier,
    money,
    read_price_sheet,
)
from twinbus.cost.units import Amount, Operation
from twinbus.errors import ConfigurationError

STANDARD = load_prices("standard")
some_units = st.integers(0, UNITS_MAX // 3)


def prices(most: int) -> st.SearchStrategy[Decimal]:
    return st.integers(0, most * 10**6).map(lambda millionths: Decimal(millionths).scaleb(-6))


@st.composite
def tiers(draw: st.DrawFn, price_max: int) -> tuple[Tier, ...]:
    ends = sorted(draw(st.sets(st.integers(1, UNITS_MAX), max_size=4)))
    return tuple(Tier(end, draw(prices(price_max))) for end in [*ends, None])


@st.composite
def sheets(draw: st.DrawFn) -> PriceSheet:
    return PriceSheet(
        name="drawn",
        currency="EUR",
        source="chance",
        dated="2026-11-16",
        base_per_hour=draw(prices(999_999)),
        base_for=draw(st.sampled_from(Payer)),
        charged=draw(st.frozensets(st.sampled_from(Operation))),
        operations=draw(tiers(999_999)),
        transfer_out=draw(tiers(9_999)),
    )


# -- arithmetic ---------------------------------------------------------------------------


@given(sheets(), some_units, some_units, some_units)
def test_a_charge_does_not_depend_on_how_it_is_split(
    sheet: PriceSheet, one: int, more: int, already: int
) -> None:
    """C1: additive over splits, to the last digit, whatever tiers lie between."""
    assert sheet.charge(one + more, already) == (
        sheet.charge(one, already) + sheet.charge(more, already + one)
    )


@given(sheets(), some_units, some_units, some_units)
def test_transfer_does_not_depend_on_how_it_is_split(
    sheet: PriceSheet, one: int, more: int, already: int
) -> None:
    """C1: bytes out too."""
    assert sheet.transfer_charge(one + more, already) == (
        sheet.transfer_charge(one, already) + sheet.transfer_charge(more, already + one)
    )


@given(sheets(), some_units, some_units, some_units)
def test_more_never_costs_less(sheet: PriceSheet, one: int, more: int, already: int) -> None:
    """C1: monotone, and nothing costs nothing."""
    assert 0 <= sheet.charge(one, already) <= sheet.charge(one + more, already)
    assert sheet.charge(0, already) == 0


@given(sheets(), st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 5))
def test_hours_add_up(sheet: PriceSheet, one: int, more: int, namespaces: int) -> None:
    """C3: the base charge of a month is that of its days."""
    assert sheet.base_charge(one + more, namespaces) == (
        sheet.base_charge(one, namespaces) + sheet.base_charge(more, namespaces)
    )


@given(some_units, some_units)
def test_a_charge_is_exact_whatever_the_callers_context(units: int, already: int) -> None:
    """C1: somebody else's precision changes nothing."""
    expected = STANDARD.charge(units, already)
    with localcontext() as context:
        context.prec = 3
        assert STANDARD.charge(units, already) == expected


@pytest.mark.parametrize(
    ("units", "already", "cost"),
    [
        (13_000_000, 0, "0"),
        (1, 13_000_000, "0.0000008"),
        (14_000_000, 0, "0.8"),
        (87_000_000, 13_000_000, "69.6"),
        (100_000_000, 0, "69.6"),
        (2_500_000_000, 0, "1269.6"),
        (1_000_000, 2_500_000_000, "0.2"),
    ],
)
def test_the_standard_sheet_has_the_published_tiers(units: int, already: int, cost: str) -> None:
    """C3: 13 million included, then 0.80, 0.50 and 0.20 a million."""
    assert STANDARD.charge(units, already) == Decimal(cost)


def test_a_secondary_is_paid_for_where_each_namespace_is() -> None:
    """C3: Premium pays for time, by namespace; Standard once."""
    premium = load_prices("premium")
    assert premium.base_charge(720, 2) == 2 * premium.base_charge(720, 1) > 0
    assert STANDARD.base_charge(720, 2) == STANDARD.base_charge(720, 1) == Decimal("9.6768")
    assert STANDARD.base_charge(720, 0) == 0


def test_what_is_charged_is_the_sheets_decision() -> None:
    """C1: the meter counts, the sheet charges."""
    settled = Amount(calls=3, messages=40, units=0, bytes_in=0, bytes_out=0)
    sent = Amount(calls=3, messages=40, units=44, bytes_in=9, bytes_out=0)
    assert STANDARD.billable(Operation.SETTLE, settled) == 0
    assert STANDARD.billable(Operation.SEND, sent) == 44
    own = read_price_sheet(SHEET.replace('"send"', '"settle"'), "own")
    assert own.billable(Operation.SETTLE, settled) == 40
    assert own.billable(Operation.SEND, sent) == 0


@pytest.mark.parametrize(
    ("units", "already"), [(-1, 0), (0, -1), (UNITS_MAX + 1, 0), (1, UNITS_MAX), (10**400, 0)]
)
def test_what_cannot_be_counted_is_not_priced(units: int, already: int) -> None:
    """C3: a sentence, not a wrong figure."""
    with pytest.raises(ConfigurationError, match="cannot be priced"):
        STANDARD.charge(units, already)
    with pytest.raises(ConfigurationError, match="cannot be priced"):
        STANDARD.transfer_charge(BYTES_MAX + 1 if units > 0 else units, already)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("0", "0.00"),
        ("0.5", "0.50"),
        ("0.0000008", "0.00000080"),
        ("0.0069", "0.0069"),
        ("-0.0069", "-0.0069"),
        ("1.005", "1.00"),
        ("1234567.891", "1,234,567.89"),
    ],
)
def test_money_is_shown_so_that_one_sees_it(amount: str, shown: str) -> None:
    """C3: rounded where it is shown, and not to nothing."""
    assert money(Decimal(amount)) == shown


# -- sheets -------------------------------------------------------------------------------

SHEET = """\
name = "own"
currency = "EUR"
source = "a contract"
dated = 2026-01-31
charged = ["send"]
[base]
per_hour = 1
for = "namespace"
[[operations]]
up_to = 100
per_million = 0.5
[[operations]]
per_million = 0.25
"""


@pytest.mark.parametrize("name", SHEETS)
def test_every_sheet_names_its_source_and_date(name: str) -> None:
    """C3: data with a source and a date."""
    sheet = load_prices(name)
    assert sheet.name == name
    assert "https://" in sheet.used.source and sheet.used.dated >= "2020"


def test_a_sheet_of_ones_own_is_a_file(tmp_path: Path) -> None:
    """C3: the user's own, with what leaves paid by the GB."""
    file = tmp_path / "own.toml"
    file.write_text(
        SHEET + "[[transfer_out]]\nup_to_gb = 5\nper_gb = 0\n[[transfer_out]]\nper_gb = 0.087\n"
    )
    sheet = load_prices(str(file))
    assert sheet.operations == (Tier(100, Decimal("0.5")), Tier(None, Decimal("0.25")))
    assert sheet.transfer_charge(6_000_000_000) == Decimal("0.087")
    assert sheet.dated == "2026-01-31"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('name = "own"', "", "'name'"),
        ('name = "own"', "name = 7", "'name'"),
        ('name = "own"', f'name = "{"x" * 501}"', "'name'"),
        ('name = "own"', 'name = "a\\nb"', "'name'"),
        ('"EUR"', '"euro"', "'currency'"),
        ('"a contract"', '""', "'source'"),
        ("2026-01-31", '"2026-02-31"', "'dated'"),
        ("2026-01-31", "2026-01-31T10:00:00Z", "'dated'"),
        ("2026-01-31", '"soon"', "'dated'"),
        ('["send"]', '["sent"]', "'charged'"),
        ('["send"]', "[[1]]", "'charged'"),
        ('["send"]', '"send"', "'charged'"),
        ('for = "namespace"', 'for = "world"', "'base.for'"),
        ('for = "namespace"', "for = []", "'base.for'"),
        ("per_hour = 1", "per_hour = -1", "'base.per_hour'"),
        ("per_hour = 1", "per_hour = nan", "'base.per_hour'"),
        ("per_hour = 1", "per_hour = inf", "'base.per_hour'"),
        ("per_hour = 1", "per_hour = 1e999", "'base.per_hour'"),
        ("per_hour = 1", "per_hour = 1e-999", "'base.per_hour'"),
        ("per_hour = 1", "per_hour = true", "'base.per_hour'"),
        ("per_hour = 1", 'per_hour = "1"', "'base.per_hour'"),
        ("per_hour = 1", "per_hour = 0.0000001", "'base.per_hour'"),
        ("per_hour = 1", "per_hours = 1", "'base.per_hour'"),
        ('[base]\nper_hour = 1\nfor = "namespace"', "base = 1", "'base'"),
        ("up_to = 100", "up_to = 0", "'operations[1].up_to'"),
        ("up_to = 100", "up_to = 1e3", "'operations[1].up_to'"),
        ("up_to = 100", f"up_to = {10**16}", "'operations[1].up_to'"),
        ("up_to = 100", "", "'operations[1].up_to'"),
        ("per_million = 0.25", "per_million = 0.25\nup_to = 200", "'operations[2].up_to'"),
        ("per_million = 0.25", "per_milion = 0.25", "'operations[2].per_million'"),
        (
            "per_million = 0.25",
            "per_million = 0.25\nup_to = 50\n[[operations]]\nper_million = 1",
            "'operations[2].up_to'",
        ),
        ("per_million = 0.25", "per_million = 0.25\n[operatons]", "'operatons'"),
        ("per_million = 0.25", "per_million = 0.25\n[transfer_out]", "'transfer_out'"),
        (
            "per_million = 0.25",
            "per_million = 0.25\n[[transfer_out]]\nper_gb = 10_000",
            "'transfer_out[1].per_gb'",
        ),
        ("per_hour = 1", f"per_hour = {'9' * 5_000}", "not valid TOML"),
        ("per_hour = 1", "per_hour = ", "not valid TOML"),
        ("per_hour = 1", f"per_hour = {'[' * 5_000}", "not valid TOML"),
    ],
)
def test_a_wrong_sheet_is_refused_in_a_sentence_that_names_the_key(
    old: str, new: str, named: str
) -> None:
    """C3: never a traceback, and never something that is free by mistake."""
    assert old in SHEET
    with pytest.raises(ConfigurationError) as caught:
        read_price_sheet(SHEET.replace(old, new, 1), "own")
    assert named in caught.value.sentence and "own" in caught.value.sentence
    assert caught.value.hint


@given(st.text())
def test_no_text_is_worth_a_traceback(text: str) -> None:
    """C3: whatever the file holds."""
    with pytest.raises(ConfigurationError):
        read_price_sheet(text, "own")


def test_a_file_that_is_no_sheet_is_refused(tmp_path: Path) -> None:
    """C3: missing, a directory, too large, not text, a name that no file can have."""
    large, binary = tmp_path / "large.toml", tmp_path / "binary.toml"
    large.write_text("#" * 100_001)
    binary.write_bytes(b"\xff\xfe\x00")
    for name in ["nobody", str(tmp_path), str(large), str(binary), "", "\0", "x" * 5_000]:
        with pytest.raises(ConfigurationError, match="Price sheet"):
            load_prices(name)
