"""The package as a user first meets it: installed from a wheel, without any extra."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import twinbus

ROOT = Path(__file__).resolve().parents[2]
# An installation from pip's cache takes 15 s on two busy cores; the first one has to download.
INSTALL_TIMEOUT_S = 240

# One worker installs it, once.
pytestmark = pytest.mark.xdist_group("bare")


def run(*command: str | Path, timeout_s: float = 60) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and its own dependencies, at the locked versions."""
    work = tmp_path_factory.mktemp("bare")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", work, ROOT,
        timeout_s=INSTALL_TIMEOUT_S)  # fmt: skip
    constraints = work / "constraints.txt"
    pins = re.findall(r"^[A-Za-z0-9._-]+==[^ \\]+", (ROOT / "requirements.lock").read_text(), re.M)
    constraints.write_text("\n".join(pins))
    venv.create(work / "env", with_pip=False)
    [wheel] = work.glob("twinbus-*.whl")
    run(*pip, "--python", work / "env", "install", "-c", constraints, wheel,
        timeout_s=INSTALL_TIMEOUT_S)  # fmt: skip
    return work / "env" / "bin"


@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)
def test_the_bare_package_imports_and_tells_its_version(bare: Path) -> None:
    version = run(bare / "python", "-c", "import twinbus; print(twinbus.__version__)")
    assert version.strip() == twinbus.__version__


@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)
def test_the_bare_command_tells_its_version(bare: Path) -> None:
    assert twinbus.__version__ in run(bare / "twinbus", "--version")


@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)
def test_no_extra_comes_along(bare: Path) -> None:
    absent = ("azure.servicebus", "aiohttp", "pyspark", "aio_pika", "pytest")
    code = (
        "import importlib.util as u\n"
        "def has(name):\n"
        "    try:\n"
        "        return u.find_spec(name) is not None\n"
        "    except ModuleNotFoundError:\n"
        "        return False\n"
        f"print([name for name in {absent!r} if has(name)])"
    )
    assert run(bare / "python", "-c", code).strip() == "[]"


@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)
def test_importing_the_package_loads_nothing_heavy(bare: Path) -> None:
    heavy = {"apsw", "asyncio", "typer", "uvloop"}
    code = f"import sys, twinbus; print(sorted({heavy!r} & set(sys.modules)))"
    assert run(bare / "python", "-c", code).strip() == "[]"


@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)
def test_the_package_is_typed(bare: Path) -> None:
    code = "import importlib.resources as r; print((r.files('twinbus') / 'py.typed').is_file())"
    assert run(bare / "python", "-c", code).strip() == "True"


@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)
def test_the_spark_packages_import_without_spark(bare: Path) -> None:
    code = (
        "import twinbus.spark, pyspark_servicebus, importlib.resources as r\n"
        "print(hasattr(pyspark_servicebus, 'DefaultSource'))\n"
        "print((r.files('twinbus.spark.runtime') / 'log4j2.properties').is_file())"
    )
    assert run(bare / "python", "-c", code).split() == ["False", "True"]


@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)
def test_the_price_sheets_come_along(bare: Path) -> None:
    """C3: an estimate needs no extra."""
    assert "Prices: premium" in run(bare / "twinbus", "cost", "estimate", "--prices", "premium")
