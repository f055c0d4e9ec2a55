"""``twinbus serve`` with a planted bug: it acknowledges before the commit has returned."""

from __future__ import annotations

import pytest

from tests.entities.sim.mutants import acknowledge_before_commit
from twinbus.cli import main

if __name__ == "__main__":
    acknowledge_before_commit(pytest.MonkeyPatch())
    main()
