"""A parent whose threads send all the time forks: python busy_parent.py KIND"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ExitStack

from senders import Send, opened

THREADS, CHILDREN, MESSAGES = 3, 4, 3


def main(kind: str) -> None:
    with ExitStack() as stack:
        send = opened(stack, kind)
        stop = threading.Event()
        sent = [0] * THREADS

        def go_on(thread: int) -> None:
            while not stop.is_set():
                send(f"thread {thread} {sent[thread]}")
                sent[thread] += 1

        threads = [threading.Thread(target=go_on, args=(each,)) for each in range(THREADS)]
        for thread in threads:
            thread.start()
        children = [_forked(send, number) for number in range(CHILDREN)]
        for pid in children:
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
        stop.set()
        for thread in threads:
            thread.join()
        print(sum(sent) + CHILDREN * MESSAGES)


def _forked(send: Send, number: int) -> int:
    pid = os.fork()
    if pid == 0:
        for message in range(MESSAGES):
            send(f"child {number} {message}")
        os._exit(0)
    return pid


if __name__ == "__main__":
    main(*sys.argv[1:])
