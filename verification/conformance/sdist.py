"""The source distribution of the installed azure-servicebus, with its tests.

Rule 1: it is fetched when it is needed and never committed.
Rule 2: its version and its hashes are those of requirements.lock, so that nobody can slip
        other tests in.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "azure-servicebus"
ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / "verification" / "conformance" / ".cache"

_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def tests_directory() -> Path:
    """The unpacked tests of the installed version; fetched if they are not there yet."""
    wanted = version(DISTRIBUTION)
    hashes = locked_hashes((ROOT / "requirements.lock").read_text(), wanted)
    archive = CACHE / f"{DISTRIBUTION.replace('-', '_')}-{wanted}.tar.gz"
    if not archive.exists():
        _download(archive, wanted, hashes)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found not in hashes:
        raise SystemExit(f"{archive.name} is not the file of requirements.lock. Delete {CACHE}.")
    return _unpack(archive) / "tests"


def locked_hashes(lock: str, wanted: str) -> frozenset[str]:
    """The hashes that the lock file allows for the distribution."""
    block = re.search(
        rf"^{re.escape(DISTRIBUTION)}=={re.escape(wanted)} \\\n((?: +--hash=.*\n)+)", lock, re.M
    )
    if block is None:
        raise SystemExit(
            f"requirements.lock has no {DISTRIBUTION} {wanted}. Run make conformance, which "
            "installs what the lock file says."
        )
    return frozenset(_HASH.findall(block[1]))


def _download(archive: Path, wanted: str, hashes: frozenset[str]) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        requirement = Path(directory) / "requirement.txt"
        pins = "".join(f" --hash=sha256:{each}" for each in sorted(hashes))
        requirement.write_text(f"{DISTRIBUTION}=={wanted}{pins}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes"]
        command += ["--disable-pip-version-check", "--no-deps", "--no-binary", DISTRIBUTION]
        subprocess.run([*command, "-d", directory, "-r", str(requirement)], check=True)
        (Path(directory) / archive.name).rename(archive)


def _unpack(archive: Path) -> Path:
    """Unpack anew each time: a file that somebody edited to look at something is gone."""
    target = CACHE / "unpacked"
    target.mkdir(exist_ok=True)
    with tarfile.open(archive) as content:
        # Python before 3.11.4 has no such filter; the hash has been checked already.
        if hasattr(tarfile, "data_filter"):
            content.extraction_filter = tarfile.data_filter
        content.extractall(target)
    return target / archive.name.removesuffix(".tar.gz")
