"""The names of ``twinbus.aio`` for programs without an event loop: thin, over one loop of ours."""

from __future__ import annotations
