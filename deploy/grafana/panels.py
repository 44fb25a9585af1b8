"""Panels of Grafana's boards, the expressions that they share, and the JSON that Grafana reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

COLUMNS, HEIGHT = 24, 8
SCHEMA_VERSION = 38
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_MODEL = 'model=~"$model"'
"""The choice of models at the top of each board."""

Unit = Literal["none", "short", "percentunit", "s", "bytes", "Bps", "reqps", "ops", "dtdurations"]
"""Names of Grafana's units. `dtdurations`: seconds as a duration."""
Line = tuple[str, str]
"""An expression of PromQL, and what its lines are called, such as `{{model}}`."""


@dataclass(frozen=True)
class Panel:
    title: str
    unit: Unit
    description: str
    lines: Sequence[Line]
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8
    top: float | None = None
    """Upper end of the scale, where it is fixed."""


@dataclass(frozen=True)
class Board:
    name: str
    title: str
    rows: dict[str, Sequence[Panel]]


def rate(metric: str, by: str = "model", more: str = "", window: str = "$__rate_interval") -> str:
    """Growth in a second of a counter of the chosen models, summed for each value of some labels."""
    return f"sum by ({by}) (rate({metric}{{{OF_MODEL}{more}}}[{window}]))"


def gauge(metric: str, by: str = "model", how: str = "sum") -> str:
    """A gauge of the chosen models, for each value of some labels."""
    return f"{how} by ({by}) ({metric}{{{OF_MODEL}}})"


def named(by: str) -> str:
    """The name of a line: the values of its labels."""
    return " ".join(f"{{{{{label}}}}}" for label in by.split(", "))


def rates(*metrics: str, by: str = "model", name: str = "") -> list[Line]:
    return [(rate(metric, by), f"{named(by)} {name or _short(metric)}".strip()) for metric in metrics]


def gauges(*metrics: str, by: str = "model", how: str = "sum") -> list[Line]:
    return [(gauge(metric, by, how), f"{named(by)} {_short(metric)}") for metric in metrics]


def percentiles(metric: str, by: str = "model", shares: Sequence[float] = (0.5, 0.95, 0.99)) -> list[Line]:
    buckets = rate(f"{metric}_bucket", f"{by}, le")
    return [(f"histogram_quantile({share}, {buckets})", f"{named(by)} p{100 * share:g}") for share in shares]


def stat(panel: Panel) -> Panel:
    """The same as one number."""
    return replace(panel, kind="stat", width=6)


def _short(metric: str) -> str:
    return metric.removeprefix("kvarn_").removesuffix("_total").replace("_", " ")


def board_json(board: Board, boards: Sequence[Board]) -> str:
    """The file that Grafana imports."""
    others = [{"title": each.title, "type": "link", "url": f"/d/kvarn-{each.name}"} for each in boards if each != board]
    whole = {
        "uid": f"kvarn-{board.name}",
        "title": board.title,
        "tags": ["kvarn"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [{**link, "keepTime": True, "includeVars": True} for link in others],
        "templating": {"list": _VARIABLES},
        "panels": list(_placed(board)),
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


_VARIABLES: list[dict[str, Any]] = [
    {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
    {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": DATASOURCE,
        "query": "label_values(kvarn_replica_up, model)",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    },
]


def _placed(board: Board) -> Iterator[dict[str, Any]]:
    """Panels from left to right, in as many lines as a row needs."""
    number, y = 0, 0
    for title, panels in board.rows.items():
        number += 1
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + HEIGHT
            number += 1
            yield _panel_json(number, panel, {"x": x, "y": y, "w": panel.width, "h": HEIGHT})
            x += panel.width
        y += HEIGHT


def _panel_json(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
        for i, (expr, legend) in enumerate(panel.lines)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.top is not None:
        defaults["max"] = panel.top
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 8, "showPoints": "never", "spanNulls": False}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }
