"""How Spark comes to know the connector."""

from __future__ import annotations

import importlib
import sys

import pytest


def without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """As if a package were not installed."""
    for name in list(sys.modules):
        if name == missing or name.startswith((f"{missing}.", "twinbus.spark.connector.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)


def test_the_package_for_spark_never_fails_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pyarrow")
    monkeypatch.delitem(sys.modules, "pyspark_servicebus", raising=False)
    assert not hasattr(importlib.import_module("pyspark_servicebus"), "DefaultSource")
