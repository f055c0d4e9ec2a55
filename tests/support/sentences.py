"""The sentences of src that users can meet, collected from its syntax trees.

    errors   the first argument of a raised error, and its hint
    logs     the first argument of a call to a logger

The helps of commands and options are on docs/CLI.md, which is generated from them and compared.

    $ python -m tests.support.sentences      # write the golden files again after a sentence changed
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.source import parse

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
GOLDEN = ROOT / "tests" / "architecture" / "golden"
SURFACES = ("errors", "logs")
LOG_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def collect(surface: str) -> list[str]:
    """``module: sentence [hint]``, in the order of modules and lines."""
    find = {"errors": _errors, "logs": _logs}[surface]
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        tree = parse(path.read_text(encoding="utf-8"))
        found += [f"{module}: {text}" for text in find(tree)]
    return found


def golden_file(surface: str) -> Path:
    return GOLDEN / f"{surface}.txt"


def _errors(tree: ast.AST) -> Iterator[str]:
    raised = {
        id(node.exc)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        hint = next((each.value for each in node.keywords if each.arg == "hint"), None)
        if id(node) not in raised and hint is None:
            continue
        sentence = next((text for each in node.args if (text := text_of(each))), "")
        hint_text = text_of(hint) if hint is not None else ""
        if sentence or hint_text:
            yield f"{sentence} [{hint_text}]" if hint_text else sentence


def _logs(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LOG_LEVELS
            and "log" in ast.unparse(node.func.value).lower()
            and node.args
            and (text := text_of(node.args[0]))
        ):
            yield f"{node.func.attr}: {text}"


def text_of(node: ast.expr) -> str:
    """A string or an f-string as it is written, with its expressions in braces; or nothing."""
    match node:
        case ast.Constant(value=str(text)):
            return " ".join(text.split())
        case ast.JoinedStr(values=values):
            parts = [
                str(each.value) if isinstance(each, ast.Constant) else _placeholder(each)
                for each in values
            ]
            return " ".join("".join(parts).split())
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body, orelse=other):
            return " | ".join(filter(None, (text_of(body), text_of(other))))
        case _:
            return ""


def _placeholder(node: ast.expr) -> str:
    assert isinstance(node, ast.FormattedValue)
    return "{" + ast.unparse(node.value) + "}"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in SURFACES:
        golden_file(each).write_text("\n".join(collect(each)) + "\n", encoding="utf-8")
