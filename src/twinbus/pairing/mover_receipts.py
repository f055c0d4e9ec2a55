"""Receipts on disk: one line of JSON for each, written when its chunk has ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from twinbus.core.receipts import Receipt, to_json_line
from twinbus.errors import ConfigurationError

__all__ = ["ReceiptFile"]


class ReceiptFile:
    """Appends to a file, so that runs follow one another in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._unusable(error) from error

    def write(self, receipts: Sequence[Receipt]) -> None:
        """Hand them to the operating system; raises ConfigurationError when it takes none."""
        try:
            self._file.writelines([to_json_line(each) + "\n" for each in receipts])
            self._file.flush()
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"receipts cannot be written to {str(self._path)!r}: {error.strerror or error}",
            hint="Choose a file that you may write, on a disk with room",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        except OSError:
            if error is None:
                raise
