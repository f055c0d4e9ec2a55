"""``twinbus cost estimate``, as somebody types it."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from twinbus.cli import app
from twinbus.cli.shared.output import show_table
from twinbus.cli.shared.values import count, rate_per_s, size_bytes
from twinbus.common.durations import seconds
from twinbus.cost.prices import read_price_sheet
from twinbus.errors import ConfigurationError
from twinbus.failover.backlog_alerts import WATCH_INTERVAL_S, WATCH_INTERVAL_S_MAX

DOCS = Path(__file__).resolve().parents[4] / "docs"
# The question of the documentation (docs/COSTS.md).
ASKED = [
    "--backlog-queues",
    "10",
    "--poll",
    "15m",
    "--rate",
    "200/s",
    "--size",
    "2KB",
    "--outage",
    "45m",
    "--entities",
    "12",
    "--senders",
    "8",
    "--syphons",
    "3",
    "--prices",
    "standard",
]


def run(*options: str, columns: int = 80) -> Result:
    return CliRunner().invoke(app, ["cost", "estimate", *options], env={"COLUMNS": f"{columns}"})


def answer(*options: str) -> Any:
    done = run(*options, "--output", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_documents_figures_come_out() -> None:
    """C3: 40, 960 and 28,800 receives with one syphon; four charges for a detoured message."""
    made = answer("--backlog-queues", "10", "--poll", "15m")
    assert [each["receives"] for each in made["idle"]] == [40, 960, 28_800]
    assert made["outage"]["charges_per_message"] == 4
    assert [each["receives_if_idle_links_end"] for each in made["idle"]] == [80, 1_920, 57_600]


def test_idle_links_that_end_are_a_line_of_the_answer() -> None:
    """C3: the figures of the documents are not those of a service that ends idle links."""
    shown = run("--backlog-queues", "10", "--poll", "15m").stdout
    assert "detached after 10m (Azure), one wait is 2 receives:\n57,600 in 30" in shown
    made = answer("--idle-detach", "20m")
    assert made["plan"]["idle_detach_s"] == 1_200
    assert made["idle"][0]["receives_if_idle_links_end"] == made["idle"][0]["receives"] == 40
    refused = run("--idle-detach", "0s")
    assert refused.exit_code != 0
    assert "idle link timeout: 0 s" in str(refused.exception)


def test_the_answer_for_scripts() -> None:
    """C3: everything the tables show, money exact and as text."""
    made = answer(*ASKED)
    assert made["prices"]["name"] == "standard"
    assert made["plan"]["rate_per_s"] == 200 and made["plan"]["outage_s"] == 2_700
    assert made["outage"]["messages"] == 540_000
    assert made["outage"]["total"] == {"units": 2_165_740, "cost": "1.08287"}
    assert made["outage"]["without_outage"] == {"units": 1_080_188, "cost": "0.540094"}
    assert made["outage"]["overhead"] == {"units": 1_085_552, "cost": "0.542776"}
    kinds = {each["kind"]: each for each in made["outage"]["kinds"]}
    assert kinds["pings"]["units"] == 4_320 and kinds["pings"]["cost"] == "0.00216"
    assert kinds["watch, counts"]["units"] + kinds["watch, peeks"]["units"] == 1_232
    assert (made["plan"]["watch_s"], made["plan"]["watch_s_max"]) == (15, 300)
    assert made["plan"]["used"] == 1_036_800_000
    assert made["plan"]["used_bytes_out"] == 1_061_683_200_000
    assert {"syphons": 3, "poll_s": 900, "receives_30_days": 86_400, "cost_30_days": "0.0432"} in (
        made["what_if"]
    )


def test_the_tables_for_people() -> None:
    """C3: readable in a terminal of 80 columns: no word is broken."""
    shown = run(*ASKED).stdout
    for line in (
        "│ 30 days │         86,400 │",
        "│ send to primary      │  540,000 │   5,400 │    540,000 │     0 B │",
        "│ receive from backlog │",
        "│ pairing, management  │",
        "│ watch, peeks         │",
        "│ caused by the outage │",
        "Added to 1,036,800,000 operations and 1,061.68 GB out in the same month (30 days of",
    ):
        assert line in shown
    assert max(map(len, shown.partition("Prices:")[0].splitlines())) <= 80


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_no_number_is_broken_in_a_narrow_terminal(columns: int) -> None:
    """C3: half a number is a wrong one."""
    shown = run("--rate", "5k/s", "--size", "70KB", "--outage", "2d", columns=columns).stdout
    assert shown.count(" 1,728,000,000") == 4 and " 61,931.52 GB" in shown


def test_names_with_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """C3: a table takes nothing for a colour or a picture."""
    show_table(["entity", "units"], [("[red]or[/x]ders :bug:", "1")], numbers_from=1)
    assert "[red]or[/x]ders :bug:" in capsys.readouterr().out


def test_the_page_shows_the_answer_that_the_command_gives() -> None:
    """C3: docs/COSTS.md, and every option is on it."""
    page = (DOCS / "COSTS.md").read_text(encoding="utf-8")
    assert "\n".join(line.rstrip() for line in run(*ASKED).stdout.splitlines()) in page
    options = re.findall(r"^ +(--[a-z-]+)", run("--help", columns=200).stdout, re.M)
    assert len(options) > 10
    assert f"after {WATCH_INTERVAL_S:g} seconds" in page
    assert f"every {WATCH_INTERVAL_S_MAX / 60:g} minutes" in page
    assert [name for name in options if name != "--help" and f"`{name}`" not in page] == []


def test_the_sheet_on_the_page_is_one() -> None:
    """C3: what one copies from docs/COSTS.md can be used."""
    page = (DOCS / "COSTS.md").read_text(encoding="utf-8")
    [sheet] = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    assert read_price_sheet(sheet, "page").transfer_charge(200 * 10**9) == 8


def test_the_month_can_begin_anywhere() -> None:
    """C3: what is included costs nothing until it is used up."""
    assert answer(*ASKED, "--used", "0")["outage"]["total"]["cost"] == "0"
    assert answer(*ASKED, "--used", "13M")["outage"]["total"]["cost"] == "1.732592"


@pytest.mark.parametrize("prices", ["standard", "basic", "premium"])
def test_where_the_month_begins_is_always_said(prices: str) -> None:
    """C3: also where nothing is included: tiers of transfer begin there, too."""
    shown = run("--rate", "1/s", "--prices", prices).stdout
    assert "Added to 5,184,000 operations and 2.65 GB out in the same month (30 days" in shown
    shown = run("--rate", "1/s", "--prices", prices, "--used", "20").stdout
    assert "Added to 20 operations and 10.24 kB out in the same month." in shown


def test_ones_own_prices(tmp_path: Path) -> None:
    """C3: a path in place of a name."""
    sheet = tmp_path / "own.toml"
    sheet.write_text(
        'name = "own"\ncurrency = "EUR"\nsource = "a contract"\ndated = 2026-01-31\n'
        'charged = ["ping"]\n[base]\nper_hour = 2\nfor = "namespace"\n'
        "[[operations]]\nper_million = 1\n"
    )
    made = answer(*ASKED[:-1], str(sheet))
    assert made["prices"]["currency"] == "EUR"
    assert made["outage"]["total"] == {"units": 4_320, "cost": "0.00432"}
    assert made["idle"][1]["base_cost"] == "96"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--outage", "-5m"], "not a time"),
        (["--outage", "nan"], "not a time"),
        (["--outage", "1e999"], "not a time"),
        (["--outage", "9" * 400], "not a time"),
        (["--outage", "9" * 12 + "d"], "is too long a time"),
        (["--outage", "45 parsecs"], "not a time"),
        (["--poll", "0"], "poll time: 0 s"),
        (["--poll", "0.0001s"], "poll time: 0 s"),
        (["--ping", "0s"], "ping interval: 0 s"),
        (["--rate", "-1/s"], "not a rate"),
        (["--rate", "nan/s"], "not a rate"),
        (["--rate", "200/year"], "not a rate"),
        (["--rate", "9" * 15 + "M/s"], "rate per second: 9"),
        (["--size", "2 lightyears"], "not a size"),
        (["--size", "-1"], "not a size"),
        (["--size", "99999MB"], "message size: "),
        (["--used", "-1"], "not a count"),
        (["--used", "0.5"], "not a count"),
        (["--used", "9" * 15 + "M"], "number of operations used: 9"),
        (["--entities", "0"], "number of entities: 0"),
        (["--senders", "-1"], "number of senders: -1"),
        (["--syphons", "0"], "number of syphons: 0"),
        (["--backlog-queues", "9" * 400], "number of backlog queues: 9"),
        (["--batch", "0"], "syphon batch size: 0"),
        (["--rate", "1000M/s", "--outage", "300d"], "cannot be priced"),
        (["--prices", "gold"], "'gold' not found"),
        (["--output", "yaml"], "--output: 'yaml'"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(options: list[str], said: str) -> None:
    """C3: one sentence and a hint; never a traceback, never a wrong figure."""
    done = run(*options)
    assert isinstance(done.exception, ConfigurationError)
    assert said in done.exception.sentence
    assert done.exception.hint and len(str(done.exception)) < 300


def test_the_smallest_question_has_an_answer() -> None:
    """C3: nothing sent, no outage."""
    made = answer("--rate", "0", "--outage", "0", "--size", "0")
    assert made["outage"]["messages"] == 0 and made["outage"]["away_s"] == 0
    assert "Outage of 0s: 0 messages diverted" in run("--outage", "0").stdout


# -- how quantities are written -----------------------------------------------------------


def test_quantities_are_read() -> None:
    """C3: rates, sizes, counts and times as people write them."""
    assert [rate_per_s(text) for text in ("200/s", "200", "12k/m", "3.6/h", "1M/d")] == [
        200,
        200,
        200,
        Fraction(1, 1000),
        Fraction(1_000_000, 86_400),
    ]
    assert [size_bytes(text) for text in ("300", "300B", "2KB", "64 kb", "1.5MB", "0.1B")] == [
        300,
        300,
        2048,
        65_536,
        1_572_864,
        1,
    ]
    assert [count(text) for text in ("0", "500k", "13M", "0.5M")] == [
        0,
        500_000,
        13_000_000,
        500_000,
    ]
    assert seconds("2d") == 172_800


@pytest.mark.parametrize("text", ["", " ", "1,5", "1e3", "0x10", "½", "٣", "+1", "1//s", "1/ s"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """C3: in any of their places."""
    for read in (rate_per_s, size_bytes, count, seconds):
        with pytest.raises(ConfigurationError, match="is not a"):
            read(text)
