"""How near the kernels for AMX can come to the peak, counted on any machine with AVX2: emulated tiles say what they do.

    python -m benchmarks.kernels.tiles [--kernels bfloat16 int8 int4 attention] [--rows 32 128 1024] [--prompts 1024]

The kernels run as on a processor with AMX, on the same addresses. Each tile product is counted, and each line that is
loaded to a tile or stored from one; three modelled caches (48 KiB, 2 MiB, 64 MiB; the line used longest ago is
forgotten) say how near it lay. `CYCLES` is what that takes on one core. The bound is the larger of products and loads,
which overlap, plus stores and configurations.

Not in it: what vectors do (norms, rounding, softmax, outputs), threads that wait, prefetches (a line that was asked for
in time is still brought from where it lay), and translations of addresses.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.kernels.attention import SHAPES as HEADS
from benchmarks.kernels.attention import prompt_batch
from benchmarks.kernels.linear import LAYER, pack_form
from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import Rotation
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.attention import plan_attention
from kvarn.kernels.cpu.kv_cache import new_kv_cache
from kvarn.shapes import KvDtype

ISA = "emulated_amx"
HERTZ, CORES = 3.0e9, 2
"""Of the machine that `CYCLES` were measured on."""
TILE_LINES = 16


def at_rate(bytes_per_s: float) -> float:
    """Cycles of one core for a line of 64 bytes, where all cores together read at that rate."""
    return 64 / (bytes_per_s / CORES) * HERTZ


@dataclass(frozen=True)
class Cycles:
    """Of one core with AMX. Measured on an Intel Xeon of 3.0 GHz, each instruction alone in a loop over data of one
    place; the rates of the third cache and of memory are shared by two cores."""

    product_by_rows: tuple[tuple[int, float], ...] = ((1, 9.0), (8, 10.0), (16, 16.0))
    load_line: tuple[float, ...] = (8 / TILE_LINES, 21 / TILE_LINES, at_rate(49e9), at_rate(29e9))
    """From the first cache, the second, the third, memory."""
    store_line: tuple[float, ...] = (14 / TILE_LINES, 59 / TILE_LINES, 125 / TILE_LINES, 125 / TILE_LINES)
    configuration: float = 157.0

    def product(self, rows: int) -> float:
        """One tile product whose sums have so many rows."""
        known, cycles = zip(*self.product_by_rows, strict=True)
        return float(np.interp(rows, known, cycles))


CYCLES = Cycles()


@dataclass(frozen=True)
class Counted:
    """What one call of a kernel did."""

    name: str
    operations: float
    """That were asked for; a multiply-add counts as two. Tiles that are not full compute more."""
    outputs: int
    per_cycle: float
    """Operations of a full tile product in a cycle."""
    products: tuple[int, ...]
    """By rows of sums."""
    loaded: tuple[int, ...]
    stored: tuple[int, ...]
    configurations: int

    @property
    def product_cycles(self) -> float:
        """Of all products, one after another."""
        return sum(count * CYCLES.product(rows) for rows, count in enumerate(self.products) if count)

    @property
    def load_cycles(self) -> float:
        """Of all loads, one after another."""
        return sum(count * cycles for count, cycles in zip(self.loaded, CYCLES.load_line, strict=True))

    @property
    def other_cycles(self) -> float:
        """Of stores and configurations."""
        stores = sum(count * cycles for count, cycles in zip(self.stored, CYCLES.store_line, strict=True))
        return stores + self.configurations * CYCLES.configuration

    @property
    def operations_per_s(self) -> float:
        """At most, on `CORES` cores."""
        return self.operations / (max(self.product_cycles, self.load_cycles) + self.other_cycles) * HERTZ * CORES

    @property
    def of_peak(self) -> float:
        """Share of what full tiles compute from registers."""
        return self.operations_per_s / (self.per_cycle * HERTZ * CORES)

    def row(self) -> str:
        """One line of the table."""
        products = max(1, sum(self.products))
        each = (count / self.outputs for count in (products, sum(self.loaded), sum(self.stored)))
        places = (count / products for count in self.loaded)
        binds = "loads" if self.load_cycles > self.product_cycles else "products"
        numbers = "".join(f"{number:8.2f}" for number in (*each, *places))
        return f"{self.name:40}{numbers}{self.operations_per_s / 1e9:8,.0f} {self.of_peak:5.0%}  {binds}"


HEADER = f"""\
{"":40}  per output              lines loaded a product, from         at most
{"":40}products  loaded  stored   first  second   third  memory   GOP/s  peak  binds"""


def count(name: str, operations: float, outputs: int, per_cycle: float, work: Callable[[], object]) -> Counted:
    """Run `work` on one thread, counting."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _native.TileCounter() as tiles:
            work()
    finally:
        torch.set_num_threads(threads)
    seen = (tuple(tiles.products), tuple(tiles.loaded), tuple(tiles.stored), tiles.configurations)
    return Counted(name, operations, outputs, per_cycle, *seen)


def count_linear(form: str, layer: str, rows: int) -> Counted:
    out, size, activation, _ = LAYER[layer]
    linear, x = pack_form(torch.randn(out, size), form, activation, ISA), torch.randn(rows, size)
    per_cycle = 1024 if form == "bfloat16" else 2048
    return count(
        f"{form} {layer} {out} x {size}, {rows} rows", 2.0 * rows * out * size, rows * out, per_cycle, lambda: linear(x)
    )


def count_attention(dtype: KvDtype, tokens: int) -> Counted:
    """A prompt's attention in one layer, of whole blocks; its outputs are numbers of the heads' results."""
    tokens -= tokens % 16
    heads, batch = HEADS["0.6b"], prompt_batch(tokens)
    cache = new_kv_cache(1, tokens // 16 + 1, heads, dtype)
    qkv = torch.randn(tokens, (heads.query + 2 * heads.kv) * heads.dim)
    angles = torch.rand(tokens, heads.dim // 2)
    plan, rotation = plan_attention(_native.Backend(ISA), batch, heads), Rotation(angles.cos(), angles.sin())
    operations = 4 * heads.query * heads.dim * tokens * (tokens + 1) / 2
    return count(
        f"attention, {dtype} KV, {tokens} tokens",
        operations,
        tokens * heads.query * heads.dim,
        1024,
        lambda: plan.run(qkv, rotation, AttentionLayer(heads.dim**-0.5), cache.keys[0], cache.values[0]),
    )


def counts(kernels: list[str], rows: list[int], prompts: list[int]) -> Iterator[Counted]:
    """What was asked for."""
    for form in ("bfloat16", "int8", "int4"):
        if form in kernels:
            # Fewer rows than 17 are multiplied by vectors where weights are int4.
            counted = [each for each in rows if each > 16 or form != "int4"]
            yield from (count_linear(form, layer, each) for each in counted for layer in LAYER)
    if "attention" in kernels:
        dtypes: tuple[KvDtype, ...] = ("bfloat16", "int8")
        yield from (count_attention(dtype, tokens) for dtype in dtypes for tokens in prompts)


def main() -> None:
    """Print a line for each call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("bfloat16", "int8", "int4", "attention")
    parser.add_argument("--kernels", nargs="+", choices=names, default=list(names))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128, 1024])
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 1024], metavar="TOKENS")
    options = parser.parse_args()
    if ISA not in _native.emulated_instruction_sets():
        parser.error("this build or this processor (AVX2 is needed) has no emulated tiles")
    print(HEADER)
    for counted in counts(options.kernels, options.rows, options.prompts):
        print(counted.row(), flush=True)


if __name__ == "__main__":
    main()
