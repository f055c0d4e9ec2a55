"""Binds the core's decisions to drivers: factories, pairs, senders, pings, journal, mover."""

from __future__ import annotations
