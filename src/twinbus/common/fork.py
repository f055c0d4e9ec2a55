"""What a forked child process must not use, and how code detects that it runs in one.

    os.fork() --in the child--> loops and sockets of the parent are disconnected
                            --> generation + 1: objects of another generation are created again
                            --> every function of run_in_child()

Rule 1: the connections that a child inherits are its parent's. A byte, a shutdown or a TLS close
        from the child would break them, and a change to the parent's epoll would stop the parent
        from receiving. So the child's descriptors are replaced before anything else runs.
Rule 2: objects of a loop of the parent are never finalised in the child: suspended coroutines
        would run their cleanup there, and asyncio would report every task.
Rule 3: only threads and loops of twinbus are changed, never the loop of an application.
Rule 4: a child ends like any process. libuv joins its resolver threads at the end, and a child
        that has none would crash: it starts some first.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import logging
import os
import select
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

__all__ = ["PerProcess", "generation", "register_loop", "register_socket", "run_in_child"]

_log = logging.getLogger("twinbus.fork")

T = TypeVar("T")

generation = 0
"""The number of forks between the first process and this one. Read it as ``fork.generation``."""

_loops: Final[WeakSet[asyncio.AbstractEventLoop]] = WeakSet()
_uvloops: Final[set[type[asyncio.AbstractEventLoop]]] = set()
"""The classes of uvloop loops that were used, for rule 4."""
_sockets: Final[WeakSet[socket.socket]] = WeakSet()
_per_process: Final[WeakSet[PerProcess[Any]]] = WeakSet()
_actions: Final[list[Callable[[], None]]] = []
_kept: Final[list[object]] = []
"""Objects that are never finalised: one reference to the list is never released."""


def register_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Register a loop that a thread of twinbus runs: a child has the loop without the thread."""
    _loops.add(loop)
    if _is_uvloop(loop):
        _uvloops.add(type(loop))


def register_socket(sock: socket.socket) -> None:
    """Register a connection of twinbus that no loop reads from."""
    _sockets.add(sock)


def run_in_child(action: Callable[[], None]) -> None:
    """Call ``action`` in every forked child, after all loops were disconnected."""
    _actions.append(action)


class PerProcess(Generic[T]):
    """An object that belongs to one process: a forked child creates its own at the first use."""

    __slots__ = ("__weakref__", "_generation", "_make", "_value")

    # One lock for all, because creating one object may need another. It is replaced in a child:
    # a thread of the parent may have held it.
    _lock = threading.RLock()

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value = make()
        self._generation = generation
        _per_process.add(self)

    @property
    def is_inherited(self) -> bool:
        """Whether it is the parent's, because it was not used in this process yet."""
        return self._generation != generation

    @property
    def last(self) -> T:
        """The current object, which can be the parent's: for reading what never changes."""
        return self._value

    def __call__(self) -> T:
        if self._generation != generation:
            self._make_again()
        return self._value

    def _make_again(self) -> None:
        with PerProcess._lock:
            if self._generation != generation:
                self._value = self._make()
                self._generation = generation


def _begin_child() -> None:
    global generation
    generation += 1
    PerProcess._lock = threading.RLock()
    for kind in _uvloops:
        atexit.register(_start_resolver, kind)
    for step in (_keep, _disconnect, *_actions):
        try:
            step()
        except Exception as error:  # Python would print it; the child does not depend on it.
            _log.debug("A step after a fork failed: %s", error)


def _keep() -> None:
    if not _kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
    for loop in tuple(_loops):
        _kept.extend((loop, asyncio.all_tasks(loop)))
    _kept.extend(each._value for each in tuple(_per_process))
    _kept.extend(_sockets)


def _disconnect() -> None:
    """Replace every registered inherited descriptor by a socket without a peer."""
    loops, sockets = tuple(_loops), tuple(_sockets)
    _loops.clear()
    _sockets.clear()
    if not loops and not sockets:
        return
    dead, other = socket.socketpair()
    other.close()
    with dead:
        for loop in loops:
            poll = _poll_descriptor(loop)
            if poll is not None:
                for descriptor in _watched(poll):
                    os.dup2(dead.fileno(), descriptor, inheritable=False)
                with select.epoll() as fresh:
                    os.dup2(fresh.fileno(), poll, inheritable=False)
        for sock in sockets:
            if sock.fileno() >= 0:
                os.dup2(dead.fileno(), sock.fileno(), inheritable=False)


def _start_resolver(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Resolve a name, so that libuv starts its resolver threads (rule 4)."""
    loop = new_loop()
    try:
        loop.run_until_complete(loop.getaddrinfo("localhost", 0))
    except Exception as error:
        _log.debug("The name resolution at the end of a child failed: %s", error)
    finally:
        loop.close()


def _poll_descriptor(loop: asyncio.AbstractEventLoop) -> int | None:
    """The epoll of a loop; None where there is none: on macOS a child does not inherit a kqueue."""
    if not hasattr(select, "epoll") or loop.is_closed():
        return None
    if _is_uvloop(loop):
        return int(loop._get_backend_id())  # type: ignore[attr-defined]
    selector: Any = getattr(loop, "_selector", None)
    return int(selector.fileno()) if type(selector) is selectors.EpollSelector else None


def _is_uvloop(loop: asyncio.AbstractEventLoop) -> bool:
    return hasattr(loop, "_get_backend_id")


def _watched(poll: int) -> list[int]:
    """The descriptors that an epoll watches, as listed by the kernel; empty where it does not."""
    try:
        with open(f"/proc/self/fdinfo/{poll}") as file:
            return [int(line.split()[1]) for line in file if line.startswith("tfd:")]
    except OSError:
        return []


if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_begin_child)
