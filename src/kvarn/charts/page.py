"""The frame of a report: style, heading, tiles, tables. A page follows the reader's light or dark setting."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --rule: #d8dee4; --page: #ffffff; --card: #f6f8fa;
  --t1: #0969da; --t2: #bc4c00; --t3: #8250df; --bad: #cf222e;
  --t5: #1a7f37; --t6: #9a6700; --t7: #bf3989; --t8: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --rule: #30363d; --page: #0d1117;
  --card: #161b22; --t1: #58a6ff; --t2: #f0883e; --t3: #bc8cff; --bad: #ff7b72;
  --t5: #3fb950; --t6: #d29922; --t7: #f778ba; --t8: #8b949e; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  margin: 0 auto; padding: 2rem 1rem; max-width: 1320px; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.when { color: var(--soft); margin: .2rem 0 1.5rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .75rem; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: .75rem 1rem; }
.tile b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid var(--rule); border-radius: 8px; padding: .75rem; }
figcaption small { color: var(--soft); } svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--rule); stroke-width: 1; } .tick, .axis { fill: var(--soft); font: 11px system-ui, sans-serif; }
.line { fill: none; stroke: var(--tone); stroke-width: 2; stroke-linejoin: round; }
.dot { fill: var(--tone); opacity: .7; }
.tone-1 { --tone: var(--t1); } .tone-2 { --tone: var(--t2); } .tone-3 { --tone: var(--t3); }
.tone-4 { --tone: var(--bad); } .tone-5 { --tone: var(--t5); } .tone-6 { --tone: var(--t6); }
.tone-7 { --tone: var(--t7); } .tone-8 { --tone: var(--t8); }
.bar { display: flex; height: 1.4rem; border-radius: 4px; overflow: hidden; background: var(--card); }
.bar i { background: var(--tone); height: 100%; } .stack .bar { margin: .6rem 0; }
.keys { display: flex; flex-wrap: wrap; gap: .2rem 1rem; } .keys .key { margin: 0; }
.rows .row { display: grid; grid-template-columns: minmax(9rem, 30%) 1fr max-content; gap: .75rem; align-items: center;
  padding: .25rem 0; } .rows .bar { height: 1rem; } .rows b { font-variant-numeric: tabular-nums; }
@media (max-width: 640px) { .rows .row { grid-template-columns: 1fr max-content; }
  .rows .row span { grid-column: 1 / 3; } }
.key { margin-left: .75rem; display: inline-block; } .key::before { content: ""; display: inline-block;
  width: .7em; height: .7em; border-radius: 2px; background: var(--tone); margin-right: .35em; }
.scroll { overflow-x: auto; } .scroll + figure { margin-top: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--rule); padding: .3rem .8rem; text-align: right; }
th:first-child, td:first-child, table.plain td, th.text, td.text { text-align: left; }
th { color: var(--soft); font-weight: 500; }
"""


def page(title: str, subtitle: str, body: str) -> str:
    """A complete page; `body` is HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="when">{escape(subtitle)}</p>{body}</body></html>\n'
    )


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """The main figures: value and name."""
    told = (f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in values)
    return f'<div class="tiles">{"".join(told)}</div>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values."""
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<div class="scroll"><table class="plain">{cells}</table></div>'
