"""What ``python -m verification.fuzz`` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from verification.fuzz import corpus, oracle
from verification.fuzz.__main__ import main


def test_an_input_is_replayed_with_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sas-cpu-0.bin"
    path.write_bytes(b"SharedAccessSignature sr=a&sig=b&se=1&skn=c")
    try:
        assert main(["--replay", str(path)]) == 0
    finally:
        oracle.leave_the_log()
    shown = capsys.readouterr().out
    assert "sas: 43 bytes, AccessDenied" in shown
    assert shown.endswith("every promise was kept\n")


def test_an_entry_of_the_corpus_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    path = next(iter(sorted((corpus.CORPUS / "sas").glob("*.z"))))
    try:
        assert main(["--replay", str(path)]) == 0
    finally:
        oracle.leave_the_log()
    assert capsys.readouterr().out.startswith("sas: ")
