"""Pages that are made from the code say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parent.parent / "docs"


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
