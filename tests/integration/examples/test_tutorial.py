"""docs/TUTORIAL.md and docs/FIRST_OUTAGE.md, typed as they stand there."""

from __future__ import annotations

import os
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# Four of its commands start Spark: one such program at a time is enough for a machine.
pytestmark = [pytest.mark.xdist_group("spark programs"), pytest.mark.timeout(590)]

DOCS = Path(__file__).resolve().parents[3] / "docs"
TUTORIAL_S_MAX = 570.0
"""For a busy machine; a quiet one takes a fifth of it."""
# The quick compiler alone: these programs live for seconds, and take a third less of a processor.
QUICK_SPARK = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
PORTS_BELOW_OUTGOING = (15_000, 32_000)
PORTS = ("5672", "5673", "5674", "5300", "5301")

_BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(slots=True)
class Step:
    """A block that is typed, the files that are saved before it, and what it prints."""

    typed: str
    files: dict[str, str]
    printed: list[str] = field(default_factory=list)


def steps_of(page: str) -> list[Step]:
    """The blocks of the page, in their order."""
    steps: list[Step] = []
    files: dict[str, str] = {}
    for name, kind, content in _BLOCK.findall(page):
        if kind == "python":
            assert name, f"a program without a name: {content[:80]}"
            files[name] = content
        elif kind == "sh":
            steps.append(Step(content, files))
            files = {}
        else:
            assert kind == "text" and steps, f"a block that no reader knows what to do with: {kind}"
            steps[-1].printed += content.splitlines()
    assert not files, f"programs that nothing starts: {', '.join(files)}"
    return steps


def first_unprinted(wanted: list[str], printed: str) -> str | None:
    """The first wanted line that the output does not have, after those before it."""
    lines = iter(printed.splitlines())
    for line in wanted:
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        if not any(pattern.fullmatch(each.strip()) for each in lines):
            return line
    return None


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        (["one", "three"], None),
        (["t...e"], None),
        (["three", "one"], "one"),
        (["on"], "on"),
        (["two...", "four"], "four"),
    ],
)
def test_output_is_compared_line_by_line(wanted: list[str], missing: str | None) -> None:
    assert first_unprinted(wanted, "one\n two \nthree\n") == missing


class Terminal:
    """A shell in which the blocks are typed, one after the other."""

    def __init__(self, directory: Path, end_s: float) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._end_s = end_s
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env={**os.environ, **QUICK_SPARK, "PATH": path, "COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._type("set -e\n")

    def run(self, block: str) -> str:
        """What the block prints; an assertion if one of its commands fails."""
        end = f"end-of-block-{time.monotonic_ns()}"
        self._type(f"{block}echo {end}\n")
        printed = ""
        for part in self._parts():
            printed += part
            if printed.endswith(f"{end}\n"):
                return printed.removesuffix(f"{end}\n")
        raise AssertionError(f"the tutorial ends here:\n{block}\n--- which prints:\n{printed}")

    def _type(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text.encode())
        self._shell.stdin.flush()

    def _parts(self) -> Iterator[str]:
        """What is printed, until the shell ends or the time is over."""
        assert self._shell.stdout is not None
        handle = self._shell.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(handle, selectors.EVENT_READ)
            while selector.select(max(self._end_s - time.monotonic(), 0.0)):
                part = os.read(handle, 65_536)
                if not part:
                    return
                yield part.decode(errors="replace")

    def close(self) -> None:
        """End the shell, and whatever a tutorial that was broken off has left behind."""
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()


def free_ports(count: int) -> list[str]:
    """Ports that nobody uses, and that no outgoing connection is given while a broker is down."""
    with ExitStack() as stack:
        found: list[str] = []
        for port in random.sample(range(*PORTS_BELOW_OUTGOING), 500):
            tried = stack.enter_context(socket.socket())
            with suppress(OSError):
                tried.bind(("127.0.0.1", port))
                found.append(str(port))
            if len(found) == count:
                return found
    raise AssertionError("no free ports")


@pytest.mark.parametrize("name", ["FIRST_OUTAGE.md", "TUTORIAL.md"])
def test_the_tutorial_does_what_it_says(tmp_path: Path, name: str) -> None:
    """M10, P10, Y1 and C3: from the first message to the books, as a new user meets them."""
    page = (DOCS / name).read_text(encoding="utf-8")
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    page = re.sub("|".join(PORTS), lambda found: ports[found[0]], page)
    terminal = Terminal(tmp_path, time.monotonic() + TUTORIAL_S_MAX)
    try:
        for step in steps_of(page):
            for program, content in step.files.items():
                (tmp_path / "shop" / program).write_text(content, encoding="utf-8")
            printed = terminal.run(step.typed)
            missing = first_unprinted(step.printed, printed)
            assert missing is None, f"not printed: {missing}\n{step.typed}\n--- but:\n{printed}"
    finally:
        terminal.close()
