"""Inputs that are worth keeping: they reached new lines, or were among the slowest of their size.

    corpus/<target>/<digest>.z      zlib: large inputs are repetitive

Rule 1: an input is kept once, under the digest of its bytes.
Rule 2: a target keeps at most ENTRIES_MAX inputs and BYTES_MAX bytes on disk; the smallest are
        kept, because they say the same in less time.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
ENTRIES_MAX: Final = 400
BYTES_MAX: Final = 100_000
# An input that does not shrink to this is not worth its place in the repository.
ENTRY_BYTES_MAX: Final = 8_000


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def load(target: str, root: Path = CORPUS) -> list[bytes]:
    """The inputs of a target, in a fixed order."""
    return [read(path) for path in sorted((root / target).glob("*.z"))]


def read(path: Path) -> bytes:
    """An input from its file: of the corpus, or plain bytes."""
    data = path.read_bytes()
    return zlib.decompress(data) if path.suffix == ".z" else data


def save(target: str, inputs: Iterable[bytes], root: Path = CORPUS) -> int:
    """Add inputs, as far as there is room; how many were added."""
    directory = root / target
    directory.mkdir(parents=True, exist_ok=True)
    present = list(directory.glob("*.z"))
    count, size = len(present), sum(path.stat().st_size for path in present)
    added = 0
    for data in sorted(inputs, key=len):
        packed = zlib.compress(data, 9)
        path = directory / f"{digest_of(data)}.z"
        if path.exists() or len(packed) > ENTRY_BYTES_MAX:
            continue
        if count >= ENTRIES_MAX or size + len(packed) > BYTES_MAX:
            break
        path.write_bytes(packed)
        count, size, added = count + 1, size + len(packed), added + 1
    return added
