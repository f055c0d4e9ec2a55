"""What a forked child must not touch, and how it learns that it is one.

    os.fork() --in the child--> loops and sockets of the parent are cut off
                            --> generation + 1: who finds another one makes its things anew
                            --> every function of in_child()

Rule 1: the connections that a child inherits are its parent's. A byte, a shutdown or the goodbye
        of TLS from the child would break them, and a change to the parent's epoll would make the
        parent deaf. So the child's descriptors of them lead nowhere before anything else runs.
Rule 2: what belonged to a loop of the parent is never finalised in the child: suspended
        coroutines would run their last lines there, and asyncio would report every task.
Rule 3: only threads and loops of ours are looked at. The loop of an application is its own.
Rule 4: a child ends as any process. The library below uvloop joins its threads for look-ups of
        names at the end, and a child that has none would crash there: it gets some.
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

__all__ = ["Remade", "generation", "in_child", "owns_loop", "owns_socket"]

_log = logging.getLogger("twinbus.fork")

T = TypeVar("T")

generation = 0
"""How many forks this process is away from the first one. Read it as ``fork.generation``."""

_loops: Final[WeakSet[asyncio.AbstractEventLoop]] = WeakSet()
_uvloops: Final[set[type[asyncio.AbstractEventLoop]]] = set()
"""The kind of loop that needs rule 4, once there was one."""
_sockets: Final[WeakSet[socket.socket]] = WeakSet()
_remade: Final[WeakSet[Remade[Any]]] = WeakSet()
_actions: Final[list[Callable[[], None]]] = []
_kept: Final[list[object]] = []
"""What is never finalised: the list has a reference that nobody gives back."""


def owns_loop(loop: asyncio.AbstractEventLoop) -> None:
    """A thread of ours runs this loop: a child has it without the thread."""
    _loops.add(loop)
    if _is_uvloop(loop):
        _uvloops.add(type(loop))


def owns_socket(sock: socket.socket) -> None:
    """A connection of ours that no loop reads from."""
    _sockets.add(sock)


def in_child(action: Callable[[], None]) -> None:
    """Call it in every child, after all loops were cut off."""
    _actions.append(action)


class Remade(Generic[T]):
    """Something that belongs to one process: a child makes its own when it first needs it."""

    __slots__ = ("__weakref__", "_generation", "_make", "_value")

    # One lock for all: it is held when one thing needs another, and replaced in a child, because
    # a thread of the parent may have held it.
    _lock = threading.RLock()

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value = make()
        self._generation = generation
        _remade.add(self)

    @property
    def is_inherited(self) -> bool:
        """Whether it is the parent's, because nobody has asked for it in this process."""
        return self._generation != generation

    @property
    def last(self) -> T:
        """The one there is, which can be the parent's: for a look at what never changes."""
        return self._value

    def __call__(self) -> T:
        if self._generation != generation:
            self._make_again()
        return self._value

    def _make_again(self) -> None:
        with Remade._lock:
            if self._generation != generation:
                self._value = self._make()
                self._generation = generation


def _begin_child() -> None:
    global generation
    generation += 1
    Remade._lock = threading.RLock()
    for kind in _uvloops:
        atexit.register(_start_resolver, kind)
    for step in (_keep, _cut_off, *_actions):
        try:
            step()
        except Exception as error:  # Python would print it, and a child can do without.
            _log.debug("a step after a fork failed: %s", error)


def _keep() -> None:
    if not _kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
    for loop in tuple(_loops):
        _kept.extend((loop, asyncio.all_tasks(loop)))
    _kept.extend(each._value for each in tuple(_remade))
    _kept.extend(_sockets)


def _cut_off() -> None:
    """Let every inherited descriptor of ours lead to a socket that nobody listens to."""
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
    """Have uvloop start its threads for look-ups of names, by one (rule 4)."""
    loop = new_loop()
    try:
        loop.run_until_complete(loop.getaddrinfo("localhost", 0))
    except Exception as error:
        _log.debug("the last look-up of a child failed: %s", error)
    finally:
        loop.close()


def _poll_descriptor(loop: asyncio.AbstractEventLoop) -> int | None:
    """The epoll of a loop; None where there is none, as on macOS, whose kqueue no child has."""
    if not hasattr(select, "epoll") or loop.is_closed():
        return None
    if _is_uvloop(loop):
        return int(loop._get_backend_id())  # type: ignore[attr-defined]
    selector: Any = getattr(loop, "_selector", None)
    return int(selector.fileno()) if type(selector) is selectors.EpollSelector else None


def _is_uvloop(loop: asyncio.AbstractEventLoop) -> bool:
    return hasattr(loop, "_get_backend_id")


def _watched(poll: int) -> list[int]:
    """The descriptors that an epoll watches, as the kernel lists them; none where it does not."""
    try:
        with open(f"/proc/self/fdinfo/{poll}") as file:
            return [int(line.split()[1]) for line in file if line.startswith("tfd:")]
    except OSError:
        return []


if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_begin_child)
