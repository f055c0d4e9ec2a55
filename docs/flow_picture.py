"""Draws ``docs/flow.svg``, the picture of a message's way in the README.

``python docs/flow_picture.py`` writes it again; a test compares the two. The picture has its own
background and follows the reader's colour scheme, so that it can be read on light and dark pages.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).with_name("flow.svg")
WIDTH, HEIGHT = 880, 400
TITLE = (
    "A message goes directly to the primary namespace. In an outage it waits in a backlog "
    "queue of the secondary; then the syphon moves it to the primary."
)

STYLE = """
  svg { --page: #ffffff; --box: #f3f5f8; --line: #8a94a3; --text: #1d2430; --soft: #4b5666;
        --direct: #1f5fbf; --detour: #b4530a; --home: #1c7a3e; }
  @media (prefers-color-scheme: dark) {
    svg { --page: #14181f; --box: #212833; --line: #6d7888; --text: #eef1f5; --soft: #b3bdcb;
          --direct: #7db3ff; --detour: #ffab66; --home: #6fd591; }
  }
  text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
         fill: var(--text); }
  .name { font-weight: 600; }
  .soft { font-size: 12.5px; fill: var(--soft); }
  .box { fill: var(--box); stroke: var(--line); }
  .queue { fill: var(--page); stroke: var(--line); }
  .way { fill: none; stroke-width: 2.5; }
  .ping { stroke-dasharray: 3 5; stroke-width: 2; }
  .direct { stroke: var(--direct); }
  .detour { stroke: var(--detour); }
  .home { stroke: var(--home); }
  text.direct, text.detour, text.home { stroke: none; font-weight: 600; font-size: 13px; }
  text.direct, .direct-tip { fill: var(--direct); }
  text.detour, .detour-tip { fill: var(--detour); }
  text.home, .home-tip { fill: var(--home); }
"""


def text(x: int, y: int, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: int, y: int, width: int, height: int, *lines: str, kind: str = "box") -> str:
    """A place; its first line is its name, and stands in the middle like the others."""
    middle, top = x + width // 2, y + height // 2 + 5 - 9 * (len(lines) - 1)
    shown = [
        text(middle, top + 18 * number, line, "soft" if number else "name", "middle")
        for number, line in enumerate(lines)
    ]
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" class="{kind}"/>'
    return "\n".join([frame, *shown])


def queues(x: int, y: int, *names: str) -> str:
    """Queues side by side."""
    shown = []
    for number, name in enumerate(names):
        left = x + 84 * number
        shown.append(f'<rect x="{left}" y="{y}" width="76" height="30" rx="4" class="queue"/>')
        shown.append(text(left + 38, y + 20, name, "soft", "middle"))
    return "\n".join(shown)


def way(kind: str, path: str, more: str = "") -> str:
    return f'<path d="{path}" class="way {kind} {more}" marker-end="url(#{kind})"/>'


def tip(kind: str) -> str:
    """The head of an arrow, in its own colour."""
    return (
        f'<marker id="{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" class="{kind}-tip"/></marker>'
    )


def page(width: int, height: int, title: str) -> list[str]:
    """The beginning of every picture: its size, title, colours and background."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{STYLE}</style>",
        f"<defs>{''.join(tip(kind) for kind in ('direct', 'detour', 'home'))}</defs>",
        f'<rect width="{width}" height="{height}" rx="12" fill="var(--page)"/>',
    ]


def drawn() -> str:
    """The whole picture."""
    parts = [
        *page(WIDTH, HEIGHT, TITLE),
        box(24, 66, 150, 84, "your application", "send()"),
        box(706, 66, 150, 84, "receivers", "as always"),
        box(706, 262, 150, 84, "syphon", "with or without Spark"),
        '<rect x="350" y="30" width="270" height="140" rx="8" class="box"/>',
        text(485, 56, "primary namespace", "name", "middle"),
        queues(363, 92, "orders", "bills", "events"),
        text(485, 150, "queues and topics", "soft", "middle"),
        '<rect x="350" y="234" width="270" height="140" rx="8" class="box"/>',
        text(485, 260, "secondary namespace", "name", "middle"),
        queues(363, 296, "backlog 0", "backlog 1", "backlog …"),
        text(485, 354, "another region, or your own disk", "soft", "middle"),
        way("direct", "M174 100H346"),
        text(260, 90, "1  normal operation", "direct", "middle"),
        way("direct", "M620 107H702"),
        way("detour", "M174 128H346", "ping"),
        text(260, 148, "3  pings", "detour", "middle"),
        way("detour", "M99 150V264Q99 304 139 304H346"),
        text(222, 292, "2  during an outage", "detour", "middle"),
        text(222, 326, "into a backlog queue", "soft", "middle"),
        way("home", "M620 304H702"),
        way("home", "M781 262V220Q781 200 761 200H505Q485 200 485 188V174"),
        text(640, 192, "4  moved to the primary", "home", "middle"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
