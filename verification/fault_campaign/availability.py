"""Who was hindered, and by what: failed sends and slow probes against the windows of the faults.

A send may fail only while one fault stands on its way to its entity and another one on its way to
the backlog, or for a reason that the rules give to the caller: a primary that says it is busy (F2),
a destination that somebody has deleted. One sender is held on the backlog: it has the one way only.
Whatever becomes of a send, it ends within its time (F6).
The prober has a queue of its own on the primary, and lines and keys that no fault touches: it is
hindered only by what happens to the primary's own process.

Rule 1: this file reads no clock, no file and no network. Same events, same answer.
Rule 2: a window reaches from the beginning of a fault until it was undone, and a little longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from verification.fault_campaign.history import Event
from verification.fault_campaign.plan import (
    AWAY_SENDERS,
    PRIMARY,
    PROBE_PAUSE_S,
    SECONDARY,
    TWIN,
    kind_of,
)
from verification.fault_campaign.windows import Window, windows_of

# A withdrawn backlog queue is tried again after a pause that doubles with every failure.
RECOVERY_S: Final = 10.0
# An entity is diverted until a ping has found it well, and a ping may hang for some seconds.
RETURN_S: Final = 20.0
# Connections are opened again, and what waited is worked off.
PROBE_RECOVERY_S: Final = 3.0
CALM_P99_S_MAX: Final = 0.25
LOADED_P99_S_MAX: Final = 1.0
P99: Final = 0.99
PROBES_MIN: Final = 100
_BUSY: Final = ("disk: full", "sync: slow")
# As the pair says it, and as the drop-in does in the words of the SDK.
_SAYS_BUSY: Final = ("ServerBusy", "ServiceBusServerBusyError")
_SAYS_GONE: Final = ("EntityNotFound", "MessagingEntityNotFoundError")
# Two cores have to do for everybody.
LATE_S: Final = 5.0


# -- senders --------------------------------------------------------------------------------------


def failed_sends(events: Sequence[Event]) -> tuple[list[str], Counter[str]]:
    """The ones that nothing excuses, and how many were excused by what."""
    windows = windows_of(events)
    begun: dict[str, float] = {}
    unavailable: list[str] = []
    excused: Counter[str] = Counter()
    for event in events:
        if event.what != "send" or not event.values:
            continue
        first = event.values[0]
        if event.type == "invoke":
            begun.update(dict.fromkeys(event.values, event.at_s))  # Some may be sent, others not.
        elif event.type != "ok" and first in begun:
            cause = _excuse(event, begun[first], windows)
            if cause is None:
                unavailable.append(f"{first} to {event.place}: {event.detail}")
            else:
                excused[cause] += 1
    return unavailable, excused


def late_sends(events: Sequence[Event], send_s: float) -> list[str]:
    """Sends that took longer than they may although their sender was there (F6), and those that
    nobody answered although it lived."""
    windows = windows_of(events)
    killed = {event.process for event in events if event.what == "kill"}
    begun: dict[str, Event] = {}
    late: list[str] = []
    for event in events:
        if event.what != "send" or not event.values:
            continue
        if event.type == "invoke":
            begun.update(dict.fromkeys(event.values, event))
            continue
        took_s = max(event.at_s - begun.pop(value, event).at_s for value in event.values)
        if took_s > send_s + LATE_S and not _was_stopped(event, took_s, windows):
            late.append(f"{event.values[0]} to {event.place}: {took_s:.1f} s")
    for value, event in begun.items():
        if event.process not in killed:
            late.append(f"{value} to {event.place}: no answer at all")
    return late


def _was_stopped(event: Event, took_s: float, windows: Iterable[Window]) -> bool:
    role = event.process.partition(".")[0]
    return any(
        each.process == role
        and each.fault.startswith("stop")
        and each.touches(event.at_s - took_s, event.at_s, 0.0)
        for each in windows
    )


def _excuse(event: Event, begin_s: float, windows: Sequence[Window]) -> str | None:
    """The fault that stood in the way of one send."""
    role = event.process.partition(".")[0]
    near = [each for each in windows if each.touches(begin_s, event.at_s, RECOVERY_S)]
    for window in near:
        is_busy = window.process == PRIMARY and window.fault in _BUSY
        if event.detail in _SAYS_BUSY and is_busy:
            return f"{window.fault}, and the primary says that it is busy"
        if event.detail in _SAYS_GONE and window.place == event.place:
            return window.fault
    for window in near:
        is_own = window.process == role and not window.place
        if is_own and window.fault.startswith("stop") and begin_s <= window.end_s:
            return window.fault  # Its time went by without it.
    return _without_backlog(role, near) if _may_be_away(event, begin_s, windows) else None


def _without_backlog(role: str, windows: Iterable[Window]) -> str | None:
    """What stood between a sender and the backlog."""
    for window in windows:
        if window.process == SECONDARY and not window.fault.startswith("backlog"):
            return window.fault  # One queue of several is no excuse; the whole namespace is.
        if window.process in (role, kind_of(role)) and window.place == SECONDARY:
            return window.fault
    return None


def _may_be_away(event: Event, begin_s: float, windows: Iterable[Window]) -> bool:
    """Whether a send needed the backlog at all: something was wrong with the way to its entity."""
    role = event.process.partition(".")[0]
    if role in AWAY_SENDERS or kind_of(role) == TWIN:
        return True
    return any(
        each.touches(begin_s, event.at_s, RETURN_S)
        and (
            (each.process == PRIMARY and each.place in ("", event.place))
            or (each.process in (role, kind_of(role)) and each.place in ("", PRIMARY))
        )
        for each in windows
    )


# -- the prober -----------------------------------------------------------------------------------


def probed(
    events: Sequence[Event], *, is_expected: bool = False
) -> tuple[list[str], Mapping[str, float]]:
    """What disturbed the prober, and its 99th percentiles in calm and under the load of faults.

    ``is_expected`` if there was one: then too few probes are a disturbance, too.
    """
    windows = windows_of(events)
    own = [each for each in windows if each.process == PRIMARY and not each.place]
    calm: list[float] = []
    loaded: list[float] = []
    disturbed: list[str] = []
    probes = 0
    for event in events:
        if event.what != "probe" or event.took_s is None:
            continue
        begin_s = event.at_s - event.took_s
        if any(each.touches(begin_s, event.at_s, PROBE_RECOVERY_S) for each in own):
            continue
        if event.type != "ok":
            disturbed.append(f"a probe at {event.at_s:.1f} s: {event.detail}")
            continue
        probes += 1
        waited_s = _waited_s(event.took_s)
        loaded += waited_s
        if not any(each.touches(begin_s, event.at_s, PROBE_RECOVERY_S) for each in windows):
            calm += waited_s
    if is_expected and probes < PROBES_MIN:
        disturbed.append(f"{probes} probes that count, where {PROBES_MIN} are needed")
    told = {"calm": _p99(calm), "all": _p99(loaded)} if probes >= PROBES_MIN else {}
    for name, limit_s in (("calm", CALM_P99_S_MAX), ("all", LOADED_P99_S_MAX)):
        if told.get(name, 0.0) > limit_s:
            disturbed.append(f"p99 {name}: {told[name] * 1_000:.0f} ms")
    return disturbed, told


def _waited_s(took_s: float) -> list[float]:
    """A probe, and those that would have been due while it hung: they would have waited for the
    rest of the time. The prober sends one at a time, so that a standstill would else be one slow
    probe among many fast ones (HdrHistogram corrects by the expected interval likewise)."""
    missed = int(took_s / PROBE_PAUSE_S)
    rest_s = (took_s - number * PROBE_PAUSE_S for number in range(1, missed + 1))
    return [took_s, *(each for each in rest_s if each > 0)]


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * P99)] if values else 0.0
