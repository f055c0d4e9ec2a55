"""Pages that are made from the code say what the code says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
import typer

from tests.support.source import parse
from twinbus.cli import app
from twinbus.encoding.envelope import Reason
from twinbus.errors import ConfigurationError
from twinbus.mover.planning.receipts import ReceiptOutcome
from twinbus.pairing.syphon_hosting import SyphonHosting
from twinbus.spark.connection_refs import NamespaceRef, option_names
from twinbus.spark.connector.column_types import TYPE_NAMES
from twinbus.spark.connector.message_columns import COLUMNS
from twinbus.spark.connector.options import READ_OPTIONS, WRITE_OPTIONS
from twinbus.spark.connector.row_encoder import check_columns
from twinbus.spark.syphon.receipt_rows import RECEIPT_COLUMNS
from twinbus.spark.syphon.settings import SyphonSettings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "examples" / "README.md",
    *sorted(DOCS.glob("*.md")),
]
# It speaks of commands in short ("queue|topic list").
CHANGELOG = ROOT / "CHANGELOG.md"

_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_COMMAND = re.compile(r"^(?: {4}|\$ )(?:\$ )?(?:\.venv/bin/)?twinbus (.+)$", re.MULTILINE)
_COMMAND_IN_LINE = re.compile(r"`twinbus ([^`\n]+)`")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def picture(name: str) -> ModuleType:
    """A script beside the pages that makes part of one."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_failover_page_shows_the_table_that_runs() -> None:
    made = picture("failover_picture")
    page = (DOCS / "FAILOVER.md").read_text(encoding="utf-8")
    assert made.generated() in page, "run: python docs/failover_picture.py"
    assert made.with_picture(page) == page


def test_the_failover_picture_has_every_change_of_health() -> None:
    made = picture("failover_picture")
    shown = (DOCS / "failover.svg").read_text(encoding="utf-8")
    assert shown == made.drawn(), "run: python docs/failover_picture.py"
    assert made.changes().keys() == made.ARROWS.keys()
    ElementTree.fromstring(shown)


BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(_PYTHON.findall(page.read_text(encoding="utf-8")), 1)
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_in_the_pages_is_python_and_imports_what_exists(block: str) -> None:
    compile(block, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("twinbus"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def anchors_of(page: Path) -> set[str]:
    """The places of a page that a link can name, as GitHub makes them from headings."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", [*PAGES, CHANGELOG], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not anchor or anchor in anchors_of(found), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_test_that_a_page_names_exists(page: Path) -> None:
    for path, name in _TEST.findall(page.read_text(encoding="utf-8")):
        source = ROOT / path
        assert source.is_file() and f"def {name}(" in source.read_text(encoding="utf-8"), name


def test_every_promise_names_a_test() -> None:
    """Each promise of GUARANTEES names a test, or a command that measures it."""
    page = (DOCS / "GUARANTEES.md").read_text(encoding="utf-8")
    promises = page.partition("## Sending\n")[2].partition("## The bad days")[0].split("\n- ")[1:]
    assert len(promises) > 30
    assert [each for each in promises if not re.search(r"\n  - .*`(tests/|make )", each)] == []


def test_the_guide_says_what_diversion_changes() -> None:
    """P15: receive from the primary only, order, session state, new messages before old ones."""
    guide = " ".join((DOCS / "PAIRING.md").read_text(encoding="utf-8").split())
    for said in (
        "Receive from the primary only",
        "The order of messages can change, also within a session",
        "new messages can reach the primary before older ones",
        "Session state is stored on the primary",
        "costs four operations",
    ):
        assert said in guide


def test_the_guide_names_every_reason_for_a_dead_letter() -> None:
    """Y4: with a reason that an operator can look up."""
    guide = (DOCS / "PAIRING.md").read_text(encoding="utf-8")
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in guide] == []


def test_the_faq_answers_what_a_new_user_asks() -> None:
    page = (DOCS / "FAQ.md").read_text(encoding="utf-8")
    questions = " ".join(_HEADING.findall(page)).lower()
    for asked in (
        "run against azure",
        "mature",
        "forks",
        "rotate a key",
        "both namespaces",
        "upgrade",
        "rabbitmq",
        "report",
    ):
        assert asked in questions, asked
    assert "**No.** twinbus was not run against Azure" in page


def test_the_readme_says_at_its_top_how_mature_it_is_and_what_it_was_tested_against() -> None:
    top = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Try it")[0]
    for said in ("mature", "not** run against Azure", "azure-servicebus", "Python 3.11", "FAQ.md"):
        assert said in top, said


# -- the tables of docs/SPARK.md ----------------------------------------------------------


def rows_under(marker: str) -> list[list[str]]:
    """The cells of the table behind a comment of the page."""
    page = (DOCS / "SPARK.md").read_text(encoding="utf-8")
    _, found, rest = page.partition(f"<!-- {marker} -->\n")
    assert found, f"docs/SPARK.md has no table {marker!r}"
    lines = rest.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names_under(marker: str) -> list[str]:
    return [name for row in rows_under(marker) for name in re.findall(r"`([^`]+)`", row[0])]


def syphon_options() -> list[str]:
    command = typer.main.get_command(app).get_command(None, "syphon")  # type: ignore[attr-defined]
    return [name for parameter in command.params for name in parameter.opts]


def backlog_options() -> list[str]:
    namespace = NamespaceRef.of_env("A")
    settings = SyphonSettings(
        primary=namespace,
        secondary=namespace,
        primary_name="shop",
        queues=("a",),
        owner="o",
        rate_per_s=1,
        state_dir="s",
        run="r",
        metering="m",
        keep_days=1,
    )
    return list(settings.to_options())


@pytest.mark.parametrize(
    ("marker", "names"),
    [
        ("options: namespace", list(option_names())),
        ("options: read", list(READ_OPTIONS)),
        ("options: write", list(WRITE_OPTIONS)),
        ("options: syphon", syphon_options()),
        ("options: hosting", [field.name for field in fields(SyphonHosting)]),
        ("options: backlog", backlog_options()),
        ("outcomes", [outcome.value for outcome in ReceiptOutcome]),
    ],
)
def test_the_page_on_spark_has_every_name_there_is(marker: str, names: list[str]) -> None:
    assert names_under(marker) == names


def test_the_page_on_spark_shows_the_columns_and_which_are_written() -> None:
    """S1: documented columns."""
    from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

    def is_sent(column: str) -> bool:
        """Whether the sink looks at the column's type, and refuses one that it cannot send."""
        found = [StructField("body", BinaryType()), StructField(column, ArrayType(StringType()))]
        try:
            check_columns(StructType(found[column == "body" :]), has_destination=True)
        except ConfigurationError:
            return True
        return False

    rows = rows_under("columns")
    assert [(row[0].strip("`"), row[1]) for row in rows] == list(COLUMNS.items())
    assert {row[0].strip("`"): row[2] in ("yes", "ids only") for row in rows} == {
        name: is_sent(name) for name in COLUMNS
    }


def test_the_page_on_spark_shows_the_columns_of_receipts() -> None:
    shown = [f"{row[0].strip('`')} {row[1]}" for row in rows_under("columns: receipts")]
    assert ", ".join(shown) == RECEIPT_COLUMNS


def test_the_page_on_spark_names_the_types_of_properties() -> None:
    page = (DOCS / "SPARK.md").read_text(encoding="utf-8")
    paragraph = page.partition("Types in `propertyTypes`:")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", paragraph)) == sorted(TYPE_NAMES)


# -- commands and pictures ----------------------------------------------------------------


def commands_in(page: Path) -> Iterator[list[str]]:
    """The words of every twinbus command that a page shows, in a line of its own or in one."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for shown in _COMMAND.findall(text) + _COMMAND_IN_LINE.findall(text):
        yield shlex.split(shown.partition(" #")[0].partition(" < ")[0])


def unknown_in(words: list[str]) -> list[str]:
    """What the command line does not know of a command."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in rest if word.startswith("--") and word not in options | {"--help"}]
    is_group = bool(getattr(command, "commands", {})) and not command.invoke_without_command
    return unknown + ([rest[0]] if is_group and rest and not rest[0].startswith("-") else [])


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CLI.md"],
    ids=lambda page: page.parent.name + "-" + page.name,
)
def test_commands_that_a_page_shows_exist(page: Path) -> None:
    told = {" ".join(words): unknown_in(words) for words in commands_in(page)}
    assert {command: unknown for command, unknown in told.items() if unknown} == {}


def test_an_unknown_command_or_option_is_seen() -> None:
    assert unknown_in(["syphon", "--onze"]) == ["--onze"]
    assert unknown_in(["fault", "earthquake"]) == ["earthquake"]
    assert unknown_in(["syphon", "rate", "500"]) == []


def test_targets_of_make_that_the_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 5 and named <= targets


def test_the_picture_of_the_readme_is_the_one_that_is_drawn() -> None:
    shown = (DOCS / "flow.svg").read_text(encoding="utf-8")
    assert shown == picture("flow_picture").drawn(), "run: python docs/flow_picture.py"
    ElementTree.fromstring(shown)
    assert "prefers-color-scheme: dark" in shown
