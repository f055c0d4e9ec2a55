"""Silence on a connection: when to send a heartbeat, and when a peer counts as gone.

Rule 1: it reads no clock; whoever runs the connection says when something was heard or written.
Rule 2: a peer is told half of the silence that it is given, as AMQP 1.0 section 2.4.5 advises.
        We keep half of the silence that a peer told us, for the same reason.
"""

from __future__ import annotations

_MS_PER_S = 1_000


class IdleWatch:
    """What one connection knows of its two directions."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._silence_max_s = idle_timeout_s * 2 or None
        self._heartbeat_period_s: float | None = None
        self._heard_at_s: float | None = None
        self._wrote_at_s: float | None = None

    def remote_says(self, idle_time_out_ms: int | None) -> None:
        """The peer's open: what it expects to hear at least. None and 0 mean nothing."""
        if idle_time_out_ms:
            self._heartbeat_period_s = idle_time_out_ms / _MS_PER_S / 2

    def heard(self, now_s: float) -> None:
        """Something came from the peer."""
        self._heard_at_s = now_s

    def wrote(self, now_s: float) -> None:
        """Something was sent to the peer."""
        self._wrote_at_s = now_s

    def next_timer_s(self) -> float | None:
        """When one of the two questions below may change its answer."""
        times = [
            at_s + period_s
            for at_s, period_s in (
                (self._wrote_at_s, self._heartbeat_period_s),
                (self._heard_at_s, self._silence_max_s),
            )
            if at_s is not None and period_s is not None
        ]
        return min(times, default=None)

    def is_peer_gone(self, now_s: float) -> bool:
        """Nothing was heard for too long."""
        if self._silence_max_s is None or self._heard_at_s is None:
            return False
        return now_s - self._heard_at_s >= self._silence_max_s

    def owes_heartbeat(self, now_s: float) -> bool:
        """The peer should hear something now."""
        if self._heartbeat_period_s is None:
            return False
        return self._wrote_at_s is None or now_s - self._wrote_at_s >= self._heartbeat_period_s
