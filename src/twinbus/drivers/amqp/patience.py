"""How long calls wait (rule 2 of the port)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from twinbus.service_errors import OperationTimeout

# The wait of a receive is for messages: its link has at least so long to open, and at most.
OPEN_TIMEOUT_S_MIN: Final = 10.0
OPEN_TIMEOUT_S_MAX: Final = 30.0


@asynccontextmanager
async def in_time(
    timeout_s: float,
    *,
    path: str,
    doing: str,
    on_timeout: Callable[[float], None] | None = None,
) -> AsyncIterator[None]:
    """What takes longer ends with OperationTimeout; ``on_timeout`` is told when it had begun."""
    began_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except OperationTimeout:
        raise  # The service's own answer.
    except TimeoutError:
        if on_timeout is not None:
            on_timeout(began_s)
        raise timed_out(timeout_s, path=path, doing=doing) from None


def timed_out(
    timeout_s: float, *, path: str, doing: str, was_sent: bool = True
) -> OperationTimeout:
    """The error of a call that got no answer."""
    error = OperationTimeout(
        f"{doing} {path!r} took longer than {timeout_s:g} s",
        path=path,
        hint="It may have been carried out" if was_sent else "Nothing was sent",
    )
    error.is_ambiguous = was_sent
    return error
