"""Reading Python source in tests."""

from __future__ import annotations

import ast
import gc


def parse(text: str) -> ast.Module:
    """The tree of a source text.

    Python 3.11 fails with a SystemError when the garbage collector runs a finalizer while it builds
    a tree (python/cpython#106905); tests that ran before may have left some.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if was_enabled:
            gc.enable()
