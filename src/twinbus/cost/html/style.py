"""The style sheet of the page: light and dark, on a phone and on paper.

Rule 1: a colour is defined once for light and once for dark, and nowhere else; people who do not
        see all colours can distinguish them, and they contrast with the background.
Rule 2: no element has a style of its own, so that a page allows this style sheet and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["DARK", "LIGHT", "SERIES", "STYLE"]

SERIES: Final = ("send", "receive", "empty", "ping", "other")
"""The classes of bars."""

LIGHT: Final[Mapping[str, str]] = {
    "page": "#f6f7f9",
    "card": "#ffffff",
    "line": "#dfe3e8",
    "grid": "#e9ecf0",
    "zero": "#8b95a1",
    "text": "#1b222b",
    "pale": "#586371",
    "link": "#0b5cad",
    "track": "#eef1f4",
    "hover": "#1b222b0d",
    "warn": "#9a5b00",
    "warn-card": "#fff8ea",
    "send": "#0b5cad",
    "receive": "#3a9bc9",
    "empty": "#d97a00",
    "ping": "#7a1f4f",
    "other": "#8f8f8f",
}
DARK: Final[Mapping[str, str]] = {
    "page": "#11151a",
    "card": "#1a2027",
    "line": "#2d353f",
    "grid": "#29313a",
    "zero": "#6d7885",
    "text": "#e8ecf1",
    "pale": "#a3aebb",
    "link": "#7db8f0",
    "track": "#262d36",
    "hover": "#e8ecf114",
    "warn": "#f0b04a",
    "warn-card": "#262114",
    "send": "#3d85d0",
    "receive": "#a8dcf0",
    "empty": "#f2c14e",
    "ping": "#f08bb0",
    "other": "#777c70",
}


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_SERIES_RULES = "\n".join(
    f"rect.{name} {{ fill: var(--{name}); }} .swatch.{name} {{ background: var(--{name}); }}"
    for name in SERIES
)

STYLE: Final = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
* {{ box-sizing: border-box; }}
body {{
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}}
main, footer {{ max-width: 68rem; margin: 0 auto; padding: 0 1.5rem; }}
header {{ padding: 2.5rem 0 1.25rem; }}
h1 {{ margin: 0; font-size: 1.75rem; line-height: 1.2; letter-spacing: -0.01em; }}
h2 {{ margin: 0; font-size: 1.0625rem; line-height: 1.35; }}
p {{ margin: 0.25rem 0 0; }}
a {{ color: var(--link); overflow-wrap: anywhere; }}
.pale, .card p, figcaption p {{ color: var(--pale); font-size: 0.875rem; }}
.whole {{ white-space: nowrap; }}
.headline {{
  display: grid; gap: 1rem; margin: 0;
  grid-template-columns: repeat(4, 1fr);
}}
.card, figure, section {{
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.125rem 1.25rem; margin: 0; min-width: 0;
}}
.card dt {{ color: var(--pale); font-size: 0.875rem; }}
.card dd {{ margin: 0; }}
.card dd.sum {{ font-size: 1.5rem; line-height: 1.4; font-weight: 600; overflow-wrap: anywhere; }}
.card dd.sum.long {{ font-size: 1.125rem; line-height: 1.8667; }}
.card small {{ font-size: 0.875rem; color: var(--pale); }}
figure, section {{ margin-top: 1rem; }}
.missing {{ background: var(--warn-card); border-left: 4px solid var(--warn); }}
.missing ul {{ margin: 0.5rem 0 0; padding-left: 1.25rem; }}
.missing li {{ overflow-wrap: anywhere; }}
.missing details {{ margin: 0.25rem 0 0.5rem; }}
.complete {{ margin: 1rem 0 0; }}
.legend {{
  list-style: none; margin: 0.75rem 0 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: 0.25rem 1.25rem; font-size: 0.875rem; color: var(--pale);
}}
.legend b {{ color: var(--text); font-weight: 600; white-space: nowrap; }}
.swatch {{
  display: inline-block; width: 0.75rem; height: 0.75rem; border-radius: 2px;
  margin-right: 0.4rem; vertical-align: -0.05rem;
}}
.over-time {{ margin-top: 0.75rem; padding-left: 3.75rem; }}
.lying {{ margin-top: 1rem; }}
svg {{ display: block; overflow: visible; font-size: 12px; }}
svg text {{ fill: var(--pale); }}
svg .name, svg .figure {{ fill: var(--text); font-size: 13px; }}
svg .note {{ fill: var(--pale); }}
.grid {{ stroke: var(--grid); shape-rendering: crispEdges; }}
.zero {{ stroke: var(--zero); shape-rendering: crispEdges; }}
.hit {{ fill: transparent; }}
.step:hover .hit {{ fill: var(--hover); }}
.track {{ fill: var(--track); }}
{_SERIES_RULES}
figure {{ container-type: inline-size; }}
.narrow {{ display: none; }}
@container (max-width: 40rem) {{ .wide {{ display: none; }} .narrow {{ display: inline; }} }}
.nothing {{ color: var(--pale); margin-top: 0.75rem; }}
details {{ margin-top: 0.75rem; font-size: 0.875rem; }}
summary {{ cursor: pointer; color: var(--pale); width: fit-content; }}
summary:hover {{ color: var(--text); }}
.scroll {{ overflow: auto; max-height: 36rem; margin-top: 0.75rem; }}
table {{ border-collapse: collapse; width: 100%; font-size: 0.875rem; }}
caption {{ text-align: left; color: var(--pale); padding-bottom: 0.25rem; }}
th, td {{
  text-align: left; vertical-align: top; padding: 0.375rem 1rem 0.375rem 0;
  border-bottom: 1px solid var(--grid);
}}
th:last-child, td:last-child {{ padding-right: 0.25rem; }}
td.word {{ overflow-wrap: anywhere; min-width: 7rem; max-width: min(26rem, 60vw); }}
td.word.short {{ white-space: nowrap; }}
.number {{ text-align: right; white-space: nowrap; }}
thead th, tfoot td {{ position: sticky; background: var(--card); font-weight: 600; }}
thead th {{ top: 0; color: var(--pale); white-space: nowrap; box-shadow: 0 1px var(--line); }}
tfoot td {{ bottom: 0; border-bottom: 0; box-shadow: 0 -1px var(--line); }}
.missing thead th {{ background: var(--warn-card); }}
tbody tr:hover td {{ background: var(--hover); }}
footer {{ color: var(--pale); font-size: 0.875rem; padding-top: 1.25rem; padding-bottom: 2.5rem; }}
@media (max-width: 64rem) {{ .headline:has(.long) {{ grid-template-columns: 1fr 1fr; }} }}
@media (max-width: 46rem) {{
  main, footer {{ padding-left: 1rem; padding-right: 1rem; }}
  header {{ padding-top: 1.5rem; }}
  .headline {{ grid-template-columns: 1fr 1fr; gap: 0.75rem; }}
  .headline:has(.long) {{ grid-template-columns: 1fr; }}
  .card, figure, section {{ padding: 0.875rem 1rem; }}
  .card dd.sum {{ font-size: 1.25rem; }}
  .card dd.sum.long {{ font-size: 1rem; line-height: 1.75; }}
}}
@media (max-width: 22rem) {{ .headline {{ grid-template-columns: 1fr; }} }}
@media print {{
  :root {{ color-scheme: light; }}
  body {{ background: none; font-size: 10pt; print-color-adjust: exact;
    -webkit-print-color-adjust: exact; }}
  main, footer {{ max-width: none; padding: 0; }}
  header {{ padding-top: 0; }}
  figure, .card, tr {{ break-inside: avoid; }}
  .scroll {{ overflow: visible; max-height: none; }}
  thead th, tfoot td {{ position: static; }}
  details {{ display: none; }}
}}
"""
