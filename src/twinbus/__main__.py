"""``python -m twinbus`` is the ``twinbus`` command."""

from __future__ import annotations

from twinbus.cli import main

main()
