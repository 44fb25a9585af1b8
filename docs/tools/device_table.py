"""The page of the planner's devices, from its table."""

from __future__ import annotations

from collections.abc import Iterator

from kvarn.planner.devices import Cell, Device, device_table

INTRODUCTION = """\
# Devices of kvarn plan

<!-- Generated from src/kvarn/planner/devices.toml by `make docs`; do not edit by hand. -->

[`kvarn plan`](../guides/plan.md) knows these devices. Numbers are of one device; tensor peaks are those of dense
products, links are counted in one direction. In italics: measured. Sources and dates stand below the table. A price is
an offer that was seen on its date: give your own with `--price`.

Kvarn: **timed** on it, **runs** on it untimed, or has **no kernels** for it; then a plan's figures are those of an
engine as efficient as Kvarn is on an H100, and such a candidate stands last.

"""
_ENGINE = {"measured": "timed", "runs": "runs", "no": "no kernels"}
_COLUMNS = (
    ("memory, GB", "memory_gb"),
    ("GB/s", "bandwidth_gb_s"),
    ("bf16 TFLOP/s", "bf16_tflops"),
    ("fp8", "fp8_tflops"),
    ("int8", "int8_tflops"),
    ("W", "watts"),
    ("$/h", "price_per_hour"),
    ("list $", "list_price"),
    ("link GB/s", "link_gb_s"),
)


def devices_page() -> str:
    """The whole of docs/reference/devices.md."""
    devices = device_table().devices
    heads = ["name", "device", "Kvarn", *(title for title, _ in _COLUMNS)]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for key, device in devices.items():
        cells = [_cell(getattr(device, name)) for _, name in _COLUMNS]
        names = ", ".join(f"`{name}`" for name in (key, *device.aliases))
        lines.append(f"| {names} | {device.name} | {_ENGINE[device.engine]} | {' | '.join(cells)} |")
    return INTRODUCTION + "\n".join([*lines, "", "## Sources", "", *_sources(devices)]) + "\n"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    value = f"{cell.value:,g}"
    if cell.low is not None and cell.high is not None:
        value += f" ({cell.low:g} to {cell.high:g})"
    return f"*{value}*" if cell.kind == "measured" else value


def _sources(devices: dict[str, Device]) -> Iterator[str]:
    for key, device in devices.items():
        told: dict[str, list[str]] = {}
        for name in device.__struct_fields__:
            cell = getattr(device, name)
            if isinstance(cell, Cell):
                extra = f" {cell.value:,g}" if cell.kind == "measured" else ""
                told.setdefault(f"{cell.source} ({cell.date})", []).append(name + extra)
        yield f"* `{key}`: " + "; ".join(f"{', '.join(names)}: {source}" for source, names in told.items())
