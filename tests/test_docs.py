"""Pages that are made from the code say what the code says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]

_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def failover_picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("failover_picture", DOCS / "failover_picture.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_failover_page_shows_the_table_that_runs() -> None:
    made = failover_picture()
    page = (DOCS / "FAILOVER.md").read_text(encoding="utf-8")
    assert made.generated() in page, "run: python docs/failover_picture.py"
    assert made.with_picture(page) == page


BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(_PYTHON.findall(page.read_text(encoding="utf-8")), 1)
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_in_the_pages_is_python_and_imports_what_exists(block: str) -> None:
    compile(block, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("twinbus"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_guide_says_what_a_detour_changes() -> None:
    """P15: receive from the primary only, order, session state, new messages before old ones."""
    guide = " ".join((DOCS / "PAIRING.md").read_text(encoding="utf-8").split())
    for said in (
        "Receive only from the primary",
        "Order may change, within a session too",
        "new messages can reach the primary before older ones",
        "Session state lives on the primary",
        "costs four operations",
    ):
        assert said in guide
