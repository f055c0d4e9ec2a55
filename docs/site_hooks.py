"""What MkDocs calls while it builds the site: ``make docs``.

The pages stay as GitHub shows them (site_markdown.py), the reference is made from the code
(site_reference.py), and a page that would load something from another server is an error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))
import site_markdown  # noqa: E402
import site_reference  # noqa: E402

REPOSITORY = DOCS.parent
# Everything that a browser fetches by itself, unlike the target of a link.
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b[^>]*?\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = site_markdown.slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/: the reference, and files that pages link to."""
    for address, text in site_reference.pages(REPOSITORY / "src").items():
        files.append(File.generated(config, address, content=text))
    for path in _linked_files():
        text = (REPOSITORY / path).read_text(encoding="utf-8")
        if not path.endswith(".md"):
            text = f"# {path}\n\n````{Path(path).suffix[1:]}\n{text}````\n"
        address = site_markdown.address_of(path)
        # A page of the navigation has no level of its own: it would be left out of it.
        level = (
            InclusionLevel.UNDEFINED if address in str(config.nav) else InclusionLevel.NOT_IN_NAV
        )
        files.append(File.generated(config, address, content=text, inclusion=level))
    return files


def _linked_files() -> list[str]:
    """Every file outside docs/ that a page links to, and those that such files link to."""
    waiting = [f"docs/{page.name}" for page in sorted(DOCS.glob("*.md"))]
    found: list[str] = []
    while waiting:
        page = waiting.pop()
        if page.endswith(".md"):
            text = (REPOSITORY / page).read_text(encoding="utf-8")
            new = set(site_markdown.outside_files(REPOSITORY, page, text)) - set(found)
            found += sorted(new)
            waiting += new
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    address = page.file.src_uri
    if address.startswith("reference/"):
        return markdown
    is_copy = address.startswith(f"{site_markdown.COPIES}/")
    path = address.removeprefix(f"{site_markdown.COPIES}/") if is_copy else f"docs/{address}"
    text = site_markdown.with_links_of_the_site(REPOSITORY, path, markdown)
    return site_markdown.with_deep_indentation(text)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    for found in _FETCHED.finditer(output):
        raise PluginError(f"{page.file.src_uri} loads {found[1] or found[2]} from another server.")
    return output
