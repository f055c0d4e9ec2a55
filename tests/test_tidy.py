"""The shape of the code, kept by tests: import arrows, purity, and what files may say."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source import parse

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

# Lowest first. A module may import from its own layer and from those below its row; layers
# that share a row know nothing of each other. The longest name that fits a module is its layer.
LAYERS: list[set[str]] = [
    {
        "twinbus",
        "twinbus.argument_types",
        "twinbus.errors",
        "twinbus.service_errors",
        "twinbus.message",
        "twinbus.entity_path",
        "twinbus.connection_string",
        "twinbus.clock",
        "twinbus.durations",
        "twinbus.fork",
        "twinbus.iso_duration",
        "twinbus.shared_access",
        "twinbus.steps",
    },
    {"twinbus.amqp"},
    {"twinbus.core"},
    {"twinbus.metering", "twinbus.pages", "twinbus.prices"},
    {"twinbus.broker.access", "twinbus.broker.store.port"},
    {"twinbus.broker.entities", "twinbus.broker.store"},
    {"twinbus.broker"},
    {"twinbus.drivers"},
    {"twinbus.pairing"},
    {"twinbus.aio"},
    {"twinbus.sync"},
    {"twinbus.azure"},
    {"twinbus.spark"},
    {"twinbus.testing", "pyspark_servicebus"},
    {"twinbus.demo"},
    {"twinbus.cli", "twinbus.dashboard"},
    {"twinbus.__main__", "twinbus.demo.__main__", "twinbus.jobs"},
]
# Words are single modules that may use each other; everything else that stands directly in the
# package must have a place above.
WORDS = LAYERS[0]
# The package's own name shows the sync names, which it loads when somebody asks for one.
FRONT_DOOR = ("twinbus", "twinbus.sync")
RANK = {layer: rank for rank, row in enumerate(LAYERS) for layer in row}

# Time comes in as an argument, chance as a Random, work goes out as effects.
PURE = {
    "twinbus.amqp",
    "twinbus.broker.access",
    "twinbus.broker.entities",
    "twinbus.broker.store.port",
    "twinbus.core",
}
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
PURE_NAMES = {("random", "Random"), ("twinbus.clock", "Instant")}
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
    if module == "twinbus" or module in WORDS:
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
        elif (own, other) == FRONT_DOOR:
            continue
        elif other != own and RANK[other] >= RANK[own] and not {own, other} <= WORDS:
            found.append(f"{module}:{line} imports {target}, which is not below it")
    return found


def impurities(module: str, tree: ast.AST) -> list[str]:
    found = []
    for imported_module, name, line in imported(tree):
        if (imported_module, name) in PURE_NAMES:
            continue
        if imported_module.split(".")[0] in IMPURE_MODULES or imported_module == "twinbus.clock":
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


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    assert wrong_arrows(module, parsed(module)) == []


@pytest.mark.parametrize("module", [name for name in MODULES if layer_of(name) in PURE])
def test_pure_layers_read_no_clock_no_chance_and_no_network(module: str) -> None:
    assert impurities(module, parsed(module)) == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("twinbus.amqp.types", "import twinbus.broker"),
        ("twinbus.broker.entities.queue", "from twinbus.broker.store.sqlite import Store"),
        ("twinbus.broker.store.sqlite", "from twinbus.broker import entities"),
        ("twinbus.broker.access.sas", "def f():\n    from twinbus.broker.server import x"),
        ("twinbus.errors", "import twinbus.amqp"),
        ("twinbus.core.failover", "import twinbus.drivers"),
        ("twinbus.amqp.types", "import twinbus.novelty"),
    ],
)
def test_a_wrong_arrow_is_seen(module: str, code: str) -> None:
    assert len(wrong_arrows(module, parse(code))) == 1


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("twinbus.entity_path", "from twinbus.errors import InvalidEntityPath"),
        ("twinbus.broker.entities.queue", "from twinbus.broker.store.port import Op"),
        ("twinbus.broker.entities.queue", "from twinbus.broker.access.claims import Claim"),
        ("twinbus.broker.server", "import twinbus.broker.store.sqlite"),
        ("twinbus.cli.serve", "import twinbus, twinbus.broker.server"),
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
        "from twinbus.clock import SystemClock",
        "def f():\n    import socket",
        "import uuid\nuuid.uuid4()",
        "from datetime import datetime\ndatetime.now()",
    ],
)
def test_an_impurity_is_seen(code: str) -> None:
    assert len(impurities("twinbus.core.x", parse(code))) == 1


def test_what_is_handed_in_may_be_named() -> None:
    code = "from random import Random\nfrom twinbus.clock import Instant\nimport uuid"
    assert impurities("twinbus.core.x", parse(code)) == []


@pytest.mark.parametrize("module", MODULES)
def test_a_module_opens_with_its_map(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    if text.strip():
        assert ast.get_docstring(parse(text)), "a module begins with its docstring"
        assert "from __future__ import annotations" in text or len(parse(text).body) == 1


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
