"""Writes the pages of the reference: one for each public package, from its ``__all__``.

Rule 1: only ``__all__`` of the public packages counts. Where a module is stored does not matter.
Rule 2: an object that several packages export is described once, in the first of them; the pages
        of the others link to it.
Rule 3: the source is read and not imported: the reference needs neither Spark nor the Azure SDK.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import griffe

PACKAGES = (
    "twinbus.errors",
    "twinbus",
    "twinbus.aio",
    "twinbus.azure",
    "twinbus.azure.aio",
    "twinbus.broker",
    "twinbus.spark",
    "twinbus.testing",
)
"""The public packages, in the order in which they describe what several of them export."""

_MAP_OF_FILES = re.compile(r"^[\w./*]+(?:\.py|/)\s")
_RULE = re.compile(r"^(Rule \d+):", re.MULTILINE)


def address_of(package: str) -> str:
    """The page of a package."""
    return f"reference/{package}.md"


def pages(source: Path) -> dict[str, str]:
    """The Markdown of every page of the reference, by address."""
    loader = griffe.GriffeLoader(search_paths=[source])
    loader.load("twinbus")
    homes: dict[str, str] = {}
    for package in PACKAGES:
        for name in _exports(loader.modules_collection[package]):
            homes.setdefault(_canonical(loader, package, name), package)
    found = {address_of(each): _page(loader, each, homes) for each in PACKAGES}
    return {"reference/index.md": _index(loader), **found}


def _exports(module: griffe.Module) -> list[str]:
    names = [str(each) for each in module.exports or ()]
    missing = [name for name in names if name not in module.members]
    if not names or missing:
        raise ValueError(
            f"__all__ of {module.path} cannot be read from its source: "
            f"{', '.join(missing) or 'it is not a list of names'}. "
            "Write it as a list, and import each name under `if TYPE_CHECKING:`."
        )
    return names


def _canonical(loader: griffe.GriffeLoader, package: str, name: str) -> str:
    return loader.modules_collection[f"{package}.{name}"].canonical_path


def _page(loader: griffe.GriffeLoader, package: str, homes: dict[str, str]) -> str:
    module = loader.modules_collection[package]
    sections: dict[str, list[str]] = {"Classes": [], "Functions": [], "Values": [], "Errors": []}
    elsewhere: dict[str, list[str]] = {}
    for name in _exports(module):
        home = homes[_canonical(loader, package, name)]
        if home == package:
            sections[_section(module[name])].append(f"{package}.{name}")
        else:
            elsewhere.setdefault(home, []).append(name)
    parts = [f"# {package}", *_introduction(module)]
    for title, paths in sections.items():
        if paths and len(sections["Errors"]) < len(module.exports or ()):
            parts.append(f"## {title}")
        parts += [f"::: {path}" for path in sorted(paths, key=str.lower)]
    for home, names in elsewhere.items():
        links = ", ".join(f"[`{name}`][{home}.{name}]" for name in sorted(names, key=str.lower))
        parts += [f"## Also exported, described in {home}", links]
    return "\n\n".join(parts) + "\n"


def _section(found: griffe.Object | griffe.Alias) -> str:
    if found.is_function:
        return "Functions"
    if not found.is_class:
        return "Values"
    return "Errors" if _is_error(found) else "Classes"


def _is_error(found: griffe.Object | griffe.Alias) -> bool:
    """Whether a class is an exception: one of the bases that it names is one."""
    bases = [str(getattr(base, "canonical_path", base)) for base in found.bases]
    return any(base.endswith(("Error", "Exception")) for base in bases) or any(
        _is_error(base) for base in found.resolved_bases
    )


def _index(loader: griffe.GriffeLoader) -> str:
    rows = [
        f"| [{package}]({package}.md) | {_summary(loader.modules_collection[package])} |"
        for package in sorted(PACKAGES)
    ]
    beginning = (
        "# Reference\n\nThe public packages. Everything that they export is described here; "
        "whatever is not here is internal and may change in any version. The commands are in "
        "[The command line](../CLI.md).\n\n| Package | What it is for |\n|---|---|\n"
    )
    return beginning + "\n".join(rows) + "\n"


def _summary(module: griffe.Module) -> str:
    text = module.docstring.value if module.docstring else ""
    return " ".join(text.split("\n\n")[0].split())


def _introduction(module: griffe.Module) -> Iterator[str]:
    """The docstring of a package as Markdown, without its map of files."""
    text = module.docstring.value if module.docstring else ""
    code: list[str] = []
    for paragraph in text.split("\n\n"):
        if _MAP_OF_FILES.match(paragraph):
            continue
        if _is_code(paragraph):
            code.append(textwrap.dedent(paragraph))
            continue
        yield from _block(code)
        code = []
        yield _RULE.sub(r"- **\1**:", paragraph) if _RULE.match(paragraph) else paragraph
    yield from _block(code)


def _block(code: Iterable[str]) -> Iterator[str]:
    text = "\n\n".join(code)
    if text:
        yield f"```python\n{text}\n```"


def _is_code(paragraph: str) -> bool:
    """Whether a paragraph is an example: statements, not a sentence."""
    try:
        found = ast.parse(textwrap.dedent(paragraph)).body
    except SyntaxError:
        return False
    return bool(found) and not isinstance(getattr(found[0], "value", None), ast.Name)
