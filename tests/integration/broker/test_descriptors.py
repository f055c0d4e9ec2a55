"""The limit of open files, in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    """M13: in a process of its own; ours keeps what it has."""
    program = (
        "import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard));"
        "from twinbus.broker.file_descriptors import raise_descriptor_limit;"
        "got = raise_descriptor_limit();"
        "print(got == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout == "True\n", told.stderr
