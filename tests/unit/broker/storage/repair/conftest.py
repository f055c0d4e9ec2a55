"""One data directory of a real broker for all tests here; each gets a copy."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.unit.broker.storage.repair.real_data import contents, make_data

Contents = dict[str, list[tuple[int, int, bytes]]]


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Contents]:
    """A closed data directory, a killed one, and what is in both."""
    directory = tmp_path_factory.mktemp("original")
    closed, killed, looked_at = (directory / name for name in ("closed", "killed", "looked-at"))
    asyncio.run(make_data(closed, killed))
    shutil.copytree(closed, looked_at)
    return closed, killed, asyncio.run(contents(looked_at))


@pytest.fixture
def closed(original: tuple[Path, Path, Contents], tmp_path: Path) -> Path:
    target = tmp_path / "data"
    shutil.copytree(original[0], target)
    return target


@pytest.fixture
def killed(original: tuple[Path, Path, Contents], tmp_path: Path) -> Path:
    target = tmp_path / "data"
    shutil.copytree(original[1], target)
    return target


@pytest.fixture
def before(original: tuple[Path, Path, Contents]) -> Contents:
    return original[2]
