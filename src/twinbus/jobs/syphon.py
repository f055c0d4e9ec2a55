"""``spark-submit … twinbus/jobs/syphon.py --once``: `twinbus syphon`, with the same options."""

from __future__ import annotations

import sys

from twinbus.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["syphon"]
    main()
