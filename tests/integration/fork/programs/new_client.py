"""A child makes a client of its own, and leaves that of its parent alone: new_client.py KIND"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from senders import opened


def main(kind: str) -> None:
    with ExitStack() as stack:
        send = opened(stack, kind)
        send("parent")
        pid = os.fork()
        if pid == 0:
            with ExitStack() as own:
                opened(own, kind)("child")
            sys.exit()
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        send("parent again")


if __name__ == "__main__":
    main(*sys.argv[1:])
