"""The documentation site has every page, and shows them as GitHub does. ``make docs`` builds it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support.source import parse

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def public_packages() -> tuple[str, ...]:
    """Those that have a page in the reference."""
    for statement in parse((DOCS / "site_reference.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "PACKAGES":
            return tuple(ast.literal_eval(statement.value))
    raise AssertionError("docs/site_reference.py has no PACKAGES")


def entries() -> list[str]:
    """The pages of the navigation, in its order."""
    return list(_pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))


def _pages_in(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for each in part.values() if isinstance(part, dict) else part:
            yield from _pages_in(each)


def site_markdown() -> ModuleType:
    """The part of the site that needs nothing but Python."""
    spec = importlib.util.spec_from_file_location("site_markdown", DOCS / "site_markdown.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation_once() -> None:
    shown = entries()
    assert len(shown) == len(set(shown))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert pages - set(shown) == set(), "add a line for each to `nav` in mkdocs.yml"


def test_every_entry_of_the_navigation_exists() -> None:
    made = {"reference/index.md", *(f"reference/{name}.md" for name in public_packages())}
    others = [name for name in entries() if name not in made]
    copies = [name.removeprefix("repository/") for name in others if name.startswith("repository/")]
    pages = [name for name in others if not name.startswith("repository/")]
    assert [name for name in pages if not (DOCS / name).is_file()] == []
    assert [name for name in copies if not (ROOT / name).is_file()] == []
    assert made <= set(entries())


def test_a_copy_in_the_navigation_is_linked_by_a_page() -> None:
    """The site copies only those files outside docs/ that a page links to."""
    linked = {
        address
        for page in DOCS.glob("*.md")
        for path in site_markdown().outside_files(
            ROOT, f"docs/{page.name}", page.read_text(encoding="utf-8")
        )
        if (address := site_markdown().address_of(path))
    }
    assert {name for name in entries() if name.startswith("repository/")} <= linked


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("docs/FAQ.md", "../CHANGELOG.md", "repository/CHANGELOG.md"),
        ("docs/TUTORIAL.md", "../README.md#try-it", "repository/README.md#try-it"),
        ("docs/FAQ.md", "BROKER.md#faults", "BROKER.md#faults"),
        ("docs/MIGRATING.md", "../examples/drop_in.py", "repository/examples/drop_in.py.md"),
        ("README.md", "docs/PAIRING.md#processes-that-fork", "../PAIRING.md#processes-that-fork"),
        ("README.md", "docs/flow.svg", "../flow.svg"),
        ("README.md", "examples/", "examples/README.md"),
        ("examples/README.md", "drop_in.py", "drop_in.py.md"),
        ("docs/FAQ.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("docs/FAQ.md", "#how-mature-is-it", "#how-mature-is-it"),
        ("docs/FAQ.md", "MISSING.md", "MISSING.md"),
        ("docs/FAQ.md", "../../outside.md", "../../outside.md"),
    ],
)
def test_a_link_leads_to_the_same_file_on_the_site(page: str, link: str, shown: str) -> None:
    changed = site_markdown().with_links_of_the_site(ROOT, page, f"See [it]({link}).")
    assert changed == f"See [it]({shown})."


def test_code_is_not_changed() -> None:
    text = "- a\n  - b\n\n```\n- [x](../README.md)\n  - y\n```\n"
    changed = site_markdown().with_links_of_the_site(ROOT, "docs/FAQ.md", text)
    assert site_markdown().with_deep_indentation(changed) == text.replace("  - b", "    - b")


def test_lists_are_nested_by_four_spaces() -> None:
    text = "- a\n  more\n  - b\n    more\n1. c\n   more\n\nText\n\n    code\n"
    shown = "- a\n    more\n    - b\n        more\n1. c\n    more\n\nText\n\n    code\n"
    assert site_markdown().with_deep_indentation(text) == shown
