"""M15: whatever a bit does to the row of an entity, the repaired store is one that opens."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.support.broken_stores import good_store
from tests.unit.broker.storage.repair.test_damaged_data import leaf_pages
from twinbus.broker.data_repair import examine_data
from twinbus.broker.storage import schema

PAGE = schema.PAGE_BYTES
ENTITIES = 8
HEAD_BITS = 32
MESSAGES = 3


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return good_store(tmp_path_factory.mktemp("entities") / "store.db").read_bytes()


def cells_of(content: bytes, path: Path) -> list[int]:
    """Where the rows of the entities begin in the file."""
    path.write_bytes(content)
    (number,) = leaf_pages(path, "entity")
    start = (number - 1) * PAGE
    count = struct.unpack_from(">H", content, start + 3)[0]
    return [start + at for at in struct.unpack_from(f">{count}H", content, start + 8)]


@pytest.mark.slow
@pytest.mark.parametrize("which", range(ENTITIES))
def test_any_bit_in_the_head_of_an_entitys_row_is_repaired(
    which: int, original: bytes, tmp_path: Path
) -> None:
    """M15: its length, its number and the kinds of its columns; no message is lost."""
    store = tmp_path / "data" / "namespace-shop" / "store.db"
    store.parent.mkdir(parents=True)
    cells = cells_of(original, store)
    assert len(cells) == ENTITIES
    for bit in range(HEAD_BITS):
        content = bytearray(original)
        content[cells[which] + bit // 8] ^= 1 << bit % 8
        store.write_bytes(content)
        new = tmp_path / f"new-{bit}"
        report = examine_data(tmp_path / "data", new)
        assert not report.is_healthy
        assert report.repaired == new
        assert (report.totals.found, report.totals.lost) == (MESSAGES, 0)
        assert examine_data(new).all_findings() == [], bit


@pytest.mark.parametrize(
    ("flips", "paths"),
    [
        pytest.param(0x40, {1: "orders"}, id="one bit, which the checksum tells"),
        pytest.param(0x60, {1: "orders"}, id="two bits: found by its dead letters"),
    ],
)
def test_a_number_that_no_entity_ever_had_is_not_believed(
    flips: int, paths: dict[int, str], original: bytes, tmp_path: Path
) -> None:
    """M15: the entity has its own number again, and those of new ones go on where they were."""
    store = tmp_path / "data" / "namespace-shop" / "store.db"
    store.parent.mkdir(parents=True)
    content = bytearray(original)
    at = cells_of(original, store)[0]
    # The length has two bytes.
    assert content[at] > 127 and content[at + 2] == 1
    content[at + 2] ^= flips
    store.write_bytes(content)
    report = examine_data(tmp_path / "data", tmp_path / "new")
    found = report.namespaces[0].store.paths
    assert found.items() >= paths.items()
    assert max(found) == ENTITIES
    assert (report.totals.found, report.totals.lost) == (MESSAGES, 0)
