"""Changes the text of a page where MkDocs reads it differently from GitHub.

The pages in ``docs/`` are written for GitHub. The site changes its own copy of them:

Rule 1: a link to a file outside ``docs/`` leads to a copy of that file, ``repository/...``.
Rule 2: nested lists are indented by four spaces, which Python-Markdown needs.
Rule 3: anchors of headings are spelled as GitHub spells them.

This module needs nothing but Python, so that the tests can import it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

COPIES = "repository"
"""The folder of the site for copies of files that are outside docs/."""

_FENCED = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]+)?(\))")
_ITEM = re.compile(r" *(?:[-*]|\d+\.) ")


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading, as GitHub spells it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def file_of(repository: Path, page: str, link: str) -> str | None:
    """The path of the file to which a link leads, or None if that file does not exist.

    ``page`` and the result are relative to the repository. A folder stands for its README.md.
    """
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if (repository / path / "README.md").is_file():
        path = posixpath.join(path, "README.md")
    is_inside = not path.startswith("..")
    return path if is_inside and (repository / path).is_file() else None


def address_of(path: str) -> str:
    """Where the site has a file of the repository: pages of docs/ at its root, others as copies."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{COPIES}/{path}" if path.endswith(".md") else f"{COPIES}/{path}.md"


def outside_files(repository: Path, page: str, text: str) -> Iterator[str]:
    """The files outside docs/ to which a page links."""
    for part in _prose(text):
        for _, link, _, _ in _LINK.findall(part):
            path = file_of(repository, page, link)
            if path is not None and not path.startswith("docs/"):
                yield path


def with_links_of_the_site(repository: Path, page: str, text: str) -> str:
    """The page with links that work on the site. What leads nowhere stays: MkDocs reports it."""
    folder = posixpath.dirname(address_of(page))

    def on_the_site(found: re.Match[str]) -> str:
        before, link, anchor, after = found.groups()
        path = file_of(repository, page, link)
        if path is None:
            return found[0]
        address = posixpath.relpath(address_of(path), folder or ".")
        return f"{before}{address}{anchor or ''}{after}"

    return _in_prose(text, lambda part: _LINK.sub(on_the_site, part))


def with_deep_indentation(text: str) -> str:
    """The page with every list nested by four spaces for each level."""
    return _in_prose(text, _indented)


def _indented(text: str) -> str:
    lines, is_list = [], False
    for line in text.split("\n"):
        if _ITEM.match(line):
            is_list = is_list or not line.startswith("    ")
        elif line and not line.startswith(" "):
            is_list = False
        text_only = line.lstrip(" ")
        indentation = len(line) - len(text_only)
        if is_list and indentation and text_only:
            line = "    " * max(1, indentation // 2) + text_only
        lines.append(line)
    return "\n".join(lines)


def _prose(text: str) -> list[str]:
    """The parts of a page between its blocks of code."""
    return _FENCED.split(text)[::2]


def _in_prose(text: str, change: Callable[[str], str]) -> str:
    parts = _FENCED.split(text)
    parts[::2] = [change(part) for part in parts[::2]]
    return "".join(parts)
