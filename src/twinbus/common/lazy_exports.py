"""Names of a package that are loaded when a program asks for them (PEP 562).

A public package names what it exports without importing it: ``import twinbus`` must not load a
broker, an SDK or PySpark for a program that needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, modules: Mapping[str, str], exported: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    ``modules`` has the defining module of each lazy name; ``exported`` is its ``__all__``, so that
    ``dir()`` also lists names that are not loaded yet.
    """

    def __getattr__(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    def __dir__() -> list[str]:
        return sorted(exported)

    return __getattr__, __dir__
