"""How a bug gets into this process, and into every Python that it starts.

Brokers, roles and Spark's workers are processes of their own. They inherit an environment that
names the bug, and a path on which Python finds ``site/sitecustomize.py``, which plants it before
anything else runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

import pytest

VARIABLE: Final = "TEETH_PLANTED"
ROOT: Final = Path(__file__).resolve().parents[2]
SITE: Final = Path(__file__).resolve().parent / "site"

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]
"""Replaces a part of the code by a wrong one, for as long as the process lives."""


def plant(bug: Plant) -> None:
    """Here, and in what is started from here."""
    bug(pytest.MonkeyPatch())
    hand_on(bug, os.environ)


def hand_on(bug: Plant, environment: MutableMapping[str, str]) -> None:
    """Let processes that are started with this environment have the bug."""
    environment[VARIABLE] = f"{bug.__module__}:{bug.__name__}"
    path = [str(SITE), str(ROOT), str(ROOT / "src"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))


def plant_what_was_handed_on() -> None:
    """In a process that was started with a bug."""
    reference = os.environ.get(VARIABLE)
    if reference is None:
        return
    module, _, name = reference.partition(":")
    # Said aloud: a process without its bug would make a blind check look sharp, or the reverse.
    print(f"planted here: {reference}", file=sys.stderr, flush=True)
    getattr(import_module(module), name)(pytest.MonkeyPatch())
