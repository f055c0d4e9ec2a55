"""Which lines of the product an input reached.

Rule 1: only the product is looked at, and only its lines: pairs of lines would cost twice as much
        and say little more about code that is made of small functions.
Rule 2: a function all of whose lines were seen is not traced any more, so that looking becomes
        cheaper the longer a run lasts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

Line = tuple[str, int]

_PRODUCT: Final = "/twinbus/"


class Coverage:
    """The lines that were ever reached by one target's inputs."""

    def __init__(self) -> None:
        self.seen: set[Line] = set()
        self._left: dict[CodeType, set[int]] = {}

    def new_lines(self, run: Callable[[], Any]) -> set[Line]:
        """Run something; the lines that nothing before it had reached."""
        before = len(self.seen)
        found: set[Line] = set()

        def local(frame: FrameType, event: str, _argument: Any) -> Any:
            code = frame.f_code
            left = self._left[code]
            if frame.f_lineno in left:
                left.discard(frame.f_lineno)
                found.add((code.co_filename, frame.f_lineno))
                if not left:
                    return None
            return local

        def called(frame: FrameType, _event: str, _argument: Any) -> Any:
            code = frame.f_code
            left = self._left.get(code)
            if left is None:
                left = self._left[code] = _lines_of(code)
            return local if left else None

        sys.settrace(called)
        try:
            run()
        finally:
            sys.settrace(None)
        self.seen |= found
        return found if len(self.seen) > before else set()

    def __len__(self) -> int:
        return len(self.seen)


def _lines_of(code: CodeType) -> set[int]:
    if _PRODUCT not in code.co_filename or "/verification/" in code.co_filename:
        return set()
    return {line for _start, _stop, line in code.co_lines() if line is not None}
