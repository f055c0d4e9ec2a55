"""A run of the fuzzer as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def test_a_run_ends_with_a_table(tmp_path: Path) -> None:
    # Started as a user starts it, in processes of its own; the corpus stays as it is.
    script = (
        "import sys; from pathlib import Path; from verification.fuzz import corpus; "
        f"corpus.save.__defaults__ = (Path({str(tmp_path)!r}),); "
        "from verification.fuzz.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["--minutes", "0.05", "--target", "sas", "--seed", "4", "--workers", "2"]
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert not done.stderr, done.stderr[-2_000:]
    assert done.returncode == (1 if "FOUND" in done.stdout else 0)
    assert "seed 4" in done.stdout
    assert "slowest ms" in done.stdout
    assert "inputs were added to the corpus" in done.stdout
    assert list((tmp_path / "sas").glob("*.z"))
