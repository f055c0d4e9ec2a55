"""``python -m twinbus.demo`` is ``twinbus demo``."""

from __future__ import annotations

import sys

from twinbus.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["demo"]
    main()
