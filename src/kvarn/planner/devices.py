"""The device table: what vendors say and what was measured, each cell with its source and date (`devices.toml`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from kvarn.planner.errors import PlanError
from kvarn.planner.quantity import Quantity

OWNED_YEARS = 4.0
"""Years over which a device that is bought is written off."""
MACHINE_SHARE = 0.5
"""Price of the machine around a device, over that of the device."""
DOLLARS_PER_KWH = 0.12
POWER_USAGE = 1.3
"""Power of the machine room over that of the device."""
_HOURS = 365.25 * 24


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number of the table. `date` is the day on which the source said so."""

    value: float
    source: str
    date: date
    kind: Literal["vendor", "measured"]
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.value < math.inf:
            raise ValueError(f"a value is above 0, not {self.value:g}")

    def quantity(self, unit: str, factor: float = 1.0) -> Quantity:
        return Quantity(value=factor * self.value, unit=unit, source=f"{self.source} ({self.kind}, {self.date})")


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device. Tensor peaks are those of dense products; links are counted in one direction."""

    name: str
    kind: Literal["gpu", "cpu", "accelerator"]
    engine: Literal["measured", "runs", "no"] = "no"
    """`measured`: Kvarn was timed on it; `runs`: Kvarn has kernels for it; `no`: it has none."""
    aliases: tuple[str, ...] = ()
    memory_gb: Cell
    bandwidth_gb_s: Cell
    read_gb_s: Cell | None = None
    bf16_tflops: Cell | None = None
    product_tflops: Cell | None = None
    fp8_tflops: Cell | None = None
    int8_tflops: Cell | None = None
    fp4_tflops: Cell | None = None
    watts: Cell | None = None
    price_per_hour: Cell | None = None
    list_price: Cell | None = None
    link_gb_s: Cell | None = None
    devices_per_node: Cell | None = None
    host_gb_s: Cell | None = None
    network_gb_s: Cell | None = None

    @property
    def memory_bytes(self) -> float:
        return 1e9 * self.memory_gb.value

    @property
    def bytes_per_s(self) -> float:
        return 1e9 * self.bandwidth_gb_s.value

    @property
    def operations_per_s(self) -> float:
        """Peak of bfloat16 products; 0: the vendor names none."""
        return 1e12 * self.bf16_tflops.value if self.bf16_tflops else 0.0

    @property
    def most_in_a_node(self) -> int:
        return int(self.devices_per_node.value) if self.devices_per_node else 1

    def dollars_per_hour(self, given: float | None, *, owned: bool = False) -> Quantity | None:
        """The price given, else the table's rent; `owned`: the cost of one that is bought. None: it is not known."""
        if given is not None:
            return Quantity(value=given, unit="$/h", source="given")
        if owned:
            return self._owned()
        if self.price_per_hour is None:
            return None
        cell = self.price_per_hour
        return msgspec.structs.replace(cell.quantity("$/h"), assumption=_range(cell))

    def _owned(self) -> Quantity | None:
        if self.list_price is None or self.watts is None:
            return None
        bought, watts = self.list_price.value, self.watts.value
        power = watts / 1000 * POWER_USAGE * DOLLARS_PER_KWH
        return Quantity(
            value=bought * (1 + MACHINE_SHARE) / (OWNED_YEARS * _HOURS) + power,
            unit="$/h",
            formula=f"${bought:,.0f} x {1 + MACHINE_SHARE:g} / {OWNED_YEARS:g} years "
            f"+ {watts / 1000:g} kW x {POWER_USAGE} x ${DOLLARS_PER_KWH}",
            assumption=f"bought and written off in {OWNED_YEARS:g} years, the machine around it half as dear as the "
            f"device, ${DOLLARS_PER_KWH}/kWh, {POWER_USAGE} times the device's power; room and people not counted",
            source=f"{self.list_price.source} ({self.list_price.date})",
        )


def _range(cell: Cell) -> str:
    if cell.low is None or cell.high is None:
        return "one price for all hours"
    return f"offers from ${cell.low:.2f} to ${cell.high:.2f}"


class DeviceTable:
    """Devices by name; aliases and spellings are found too."""

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self.devices = dict(devices)
        self._keys = {_plain(each): key for key, device in devices.items() for each in (key, *device.aliases)}

    def find(self, name: str) -> tuple[str, Device]:
        """The key and the row of a device. Raises PlanError with near names."""
        key = self._keys.get(_plain(name))
        if key is None:
            near = get_close_matches(_plain(name), self._keys, n=3, cutoff=0.4)
            meant = ", ".join(dict.fromkeys(self._keys[each] for each in near)) or ", ".join(self.devices)
            raise PlanError(f"there is no device {name!r} in the table; did you mean: {meant}?")
        return key, self.devices[key]

    def with_file(self, path: Path) -> DeviceTable:
        """The table with a user's own rows, which go before ours. Raises PlanError."""
        try:
            own = _decode(path.read_bytes())
        except OSError as error:
            raise PlanError(f"cannot read the devices of {path}: {error.strerror}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PlanError(
                f"{path} is not a table of devices: {error}. Each cell is "
                "{ value = 80, source = 'data sheet', date = 2026-11-27, kind = 'vendor' }, also a price: one without "
                "a date is not used"
            ) from None
        return DeviceTable({**self.devices, **own})


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _decode(data: bytes) -> dict[str, Device]:
    return msgspec.toml.decode(data, type=dict[str, Device])


@cache
def device_table() -> DeviceTable:
    return DeviceTable(_decode((files("kvarn.planner") / "devices.toml").read_bytes()))
