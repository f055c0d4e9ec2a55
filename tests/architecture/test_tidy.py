"""The shape of the code, kept by tests: import arrows, purity, and what files may say."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source import parse

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

# Lowest first. A module may import from its own layer and from those below its row; layers
# that share a row know nothing of each other. The longest name that fits a module is its layer.
LAYERS: list[set[str]] = [
    {"twinbus", "twinbus.errors", "twinbus.message", "twinbus.common"},
    {"twinbus.amqp"},
    {"twinbus.encoding"},
    {"twinbus.failover"},
    {"twinbus.mover.planning", "twinbus.cost"},
    {"twinbus.metering"},
    {"twinbus.broker.access", "twinbus.broker.storage.interface"},
    {"twinbus.broker.engine", "twinbus.broker.storage"},
    {"twinbus.broker"},
    {"twinbus.drivers"},
    {"twinbus.mover"},
    {"twinbus.pairing"},
    {"twinbus.aio"},
    {"twinbus.sync"},
    {"twinbus.azure"},
    {"twinbus.spark"},
    {"twinbus.testing", "pyspark_servicebus"},
    {"twinbus.demo"},
    {"twinbus.cli"},
    {"twinbus.__main__", "twinbus.demo.__main__", "twinbus.jobs"},
]
# The lowest row may use each other; everything else that stands directly in the package must have
# a place above.
LOWEST = LAYERS[0]
# The package itself exports the names of ``sync``, which it loads when somebody asks for one.
LAZY_EXPORT = ("twinbus", "twinbus.sync")
RANK = {layer: rank for rank, row in enumerate(LAYERS) for layer in row}
FILES_IN_A_FOLDER_MAX = 18

# Time comes in as an argument, chance as a Random, work goes out as effects.
PURE = {
    "twinbus.amqp",
    "twinbus.broker.access",
    "twinbus.broker.engine",
    "twinbus.broker.storage.interface",
    "twinbus.cost",
    "twinbus.encoding",
    "twinbus.failover",
    "twinbus.mover.planning",
}
# It reads the price sheets that come along.
NOT_PURE = {"twinbus.cost.price_sheets"}
IMPURE_MODULES = {
    "apsw",
    "asyncio",
    "multiprocessing",
    "os",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "uvloop",
}
# The type of what is handed in, not the source of it.
PURE_NAMES = {("random", "Random"), ("twinbus.common.clock", "Instant")}
IMPURE_CALLS = {"now", "today", "utcnow", "uuid1", "uuid4", "urandom"}
CLOCK_HOLDERS = {"datetime", "date", "uuid", "os"}

# Spelled in two halves, so that this file does not accuse itself.
FORBIDDEN = [
    "/" + "work/",
    "/tmp" + "/v/",
    ".." + "/shared",
    "/opt/" + "pypi",
    "/opt/" + "wheels",
    "files.python" + "hosted",
    "pypi" + ".org",
    "--index" + "-url",
    "--extra-index" + "-url",
    "--find" + "-links",
]
# The Makefile tells the lock tool which of those options to leave out.
MAY_NAME_OPTIONS = {"Makefile"}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def layer_of(module: str) -> str | None:
    if module == "twinbus":
        return module
    fitting = [
        name
        for name in RANK
        if name != "twinbus" and (module == name or module.startswith(name + "."))
    ]
    return max(fitting, key=len, default=None)


def imported(tree: ast.AST) -> Iterator[tuple[str, str | None, int]]:
    """Every (module, name or None, line) that a file imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name, node.lineno


def target_of(module: str, name: str | None) -> str:
    """``from package import x`` may mean a module of that package."""
    inner = f"{module}.{name}"
    return inner if inner in MODULES else module


def wrong_arrows(module: str, tree: ast.AST) -> list[str]:
    own = layer_of(module)
    if own is None:
        return [f"{module} has no place in LAYERS"]
    found = []
    for imported_module, name, line in imported(tree):
        target = target_of(imported_module, name)
        if target.split(".")[0] != "twinbus":
            continue
        other = layer_of(target)
        if other is None:
            found.append(f"{module}:{line} imports {target}, which has no place in LAYERS")
        elif (own, other) == LAZY_EXPORT:
            continue
        elif other != own and RANK[other] >= RANK[own] and not {own, other} <= LOWEST:
            found.append(f"{module}:{line} imports {target}, which is not below it")
    return found


def impurities(module: str, tree: ast.AST) -> list[str]:
    found = []
    for imported_module, name, line in imported(tree):
        if (imported_module, name) in PURE_NAMES:
            continue
        if (
            imported_module.split(".")[0] in IMPURE_MODULES
            or imported_module == "twinbus.common.clock"
        ):
            found.append(f"{module}:{line} imports {imported_module}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in IMPURE_CALLS:
            holder = node.value
            if isinstance(holder, ast.Name) and holder.id in CLOCK_HOLDERS:
                found.append(f"{module}:{node.lineno} uses {holder.id}.{node.attr}")
    return found


def parsed(module: str) -> ast.AST:
    return parse(MODULES[module].read_text(encoding="utf-8"))


def project_files() -> list[Path]:
    """What git tracks or would track; without git, what a source archive holds."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = [name for name in listing.stdout.decode().split("\0") if name]
        return [ROOT / name for name in names if (ROOT / name).is_file()]
    return [p for part in ("src", "tests", "docs") for p in (ROOT / part).rglob("*.*")]


def test_imports_point_down() -> None:
    assert [each for module in MODULES for each in wrong_arrows(module, parsed(module))] == []


def test_pure_layers_read_no_clock_no_chance_and_no_network() -> None:
    pure = [name for name in MODULES if layer_of(name) in PURE and name not in NOT_PURE]
    assert pure
    assert [each for module in pure for each in impurities(module, parsed(module))] == []


def test_a_folder_holds_few_files() -> None:
    counts = Counter(path.parent for path in MODULES.values())
    large = {folder: count for folder, count in counts.items() if count > FILES_IN_A_FOLDER_MAX}
    assert large == {}


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("twinbus.amqp.codec.types", "import twinbus.broker"),
        ("twinbus.broker.engine.queue", "from twinbus.broker.storage.sqlite_store import Store"),
        ("twinbus.broker.storage.sqlite_store", "from twinbus.broker import engine"),
        ("twinbus.broker.access.sas", "def f():\n    from twinbus.broker.server import x"),
        ("twinbus.errors", "import twinbus.amqp"),
        ("twinbus.failover.state_machine", "import twinbus.drivers"),
        ("twinbus.mover.mover", "from twinbus.pairing.pair import x"),
        ("twinbus.cost.units", "from twinbus.mover.planning.receipts import Receipt"),
        ("twinbus.amqp.codec.types", "import twinbus.novelty"),
    ],
)
def test_a_wrong_arrow_is_seen(module: str, code: str) -> None:
    assert len(wrong_arrows(module, parse(code))) == 1


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("twinbus.common.entity_path", "from twinbus.errors import InvalidEntityPath"),
        ("twinbus.broker.engine.queue", "from twinbus.broker.storage.interface import Op"),
        ("twinbus.broker.engine.queue", "from twinbus.broker.access.rules import Claim"),
        ("twinbus.broker.server", "import twinbus.broker.storage.sqlite_store"),
        ("twinbus.cli.broker.serve", "import twinbus, twinbus.broker.server"),
    ],
)
def test_a_right_arrow_is_let_be(module: str, code: str) -> None:
    assert wrong_arrows(module, parse(code)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import time",
        "from random import random",
        "import asyncio.events",
        "from twinbus.common.clock import SystemClock",
        "def f():\n    import socket",
        "import uuid\nuuid.uuid4()",
        "from datetime import datetime\ndatetime.now()",
    ],
)
def test_an_impurity_is_seen(code: str) -> None:
    assert len(impurities("twinbus.failover.x", parse(code))) == 1


def test_what_is_handed_in_may_be_named() -> None:
    code = "from random import Random\nfrom twinbus.common.clock import Instant\nimport uuid"
    assert impurities("twinbus.failover.x", parse(code)) == []


def test_a_module_begins_with_its_docstring() -> None:
    found = []
    for module, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        tree = parse(text)
        if text.strip() and not ast.get_docstring(tree):
            found.append(f"{module} does not begin with a docstring")
        if len(tree.body) > 1 and "from __future__ import annotations" not in text:
            found.append(f"{module} has no `from __future__ import annotations`")
    assert found == []


def test_files_speak_only_of_the_project() -> None:
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        name = path.relative_to(ROOT).as_posix()
        words = [word for word in FORBIDDEN if word in text]
        if name in MAY_NAME_OPTIONS:
            words = [word for word in words if not word.startswith("--")]
        found += [f"{name} mentions {word}" for word in words]
    assert found == []


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements*.lock")), ids=lambda p: p.name)
def test_a_lock_file_has_versions_and_hashes_and_no_addresses(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            assert "==" in line and line.endswith("\\"), f"not pinned with hashes: {line}"
