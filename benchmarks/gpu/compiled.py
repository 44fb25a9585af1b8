"""Compile every variant for sm_90 without a GPU, and read what the compiler made of it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.gpu.variant import Variant
from benchmarks.gpu.variants import variants

TARGET = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024
"""Bytes a program may have on sm_90."""
WIDE = ("LDG.E.128", "LDGSTS.E.BYPASS.128", "LDGSTS.E.128", "UBLKCP", "UTMALDG")
"""Instructions that load 16 bytes at a time, or more."""
LEFT_IN_REGISTERS = re.compile(r"HGMMA\S* R\d+, R\d+, gdesc")
NOT_WAITED_FOR = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x[1-9]")
LABEL = re.compile(r"\s*(\.L_x_\d+):")
JUMP = re.compile(r"BRA `\((\.L_x_\d+)\)")
STRETCH = re.compile(r"\n\s*\.L_x_\d+:|BRA [^\n]*")
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of a variant."""

    variant: Variant
    registers: int
    spills: int
    """Beside the products of the innermost loop with such, or where there is none, anywhere."""
    shared_bytes: int
    wide_loads: int
    tensor_cores: str
    """`wgmma`, `mma` or nothing."""
    reads_late: bool
    """Whether a product may still read registers when the next step writes them."""

    @property
    def line(self) -> str:
        """One line of text."""
        memory = f"{self.shared_bytes / 1024:.0f} KiB shared, {self.wide_loads} wide loads"
        cores = self.tensor_cores or "no tensor cores"
        return f"{self.variant.name}: {self.registers} registers, {self.spills} spills, {memory}, {cores}"

    def faults(self) -> Iterator[str]:
        """What the gate refuses."""
        name = self.variant.name
        if self.spills > self.variant.most_spills:
            yield f"{name}: {self.spills} registers are spilled"
        if self.shared_bytes > SHARED_MEMORY:
            yield f"{name}: {self.shared_bytes} bytes of shared memory, {SHARED_MEMORY} at most"
        if self.registers > self.variant.most_registers:
            yield f"{name}: {self.registers} registers, {self.variant.most_registers} at most"
        if self.reads_late:
            yield f"{name}: a step does not wait for products whose left operand is in registers"
        if self.variant.wide_loads and not self.wide_loads:
            yield f"{name}: no loads of 16 bytes"


def compile_variant(variant: Variant) -> Compiled:
    """In a second or two. Raises what the compiler does."""
    kernel = variant.kernel
    constants = {name: variant.constants.get(name) for name in kernel.arg_names if name not in variant.types}
    signature = {name: variant.types.get(name, "constexpr") for name in kernel.arg_names}
    aligned = [place for place, name in enumerate(kernel.arg_names) if signature[name].startswith("*")]
    source = ASTSource(
        kernel,
        signature,
        {(kernel.arg_names.index(name),): value for name, value in constants.items()},
        {(place,): [["tt.divisibility", 16]] for place in aligned},
    )
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    built = triton.compile(source, target=TARGET, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        )
        code = subprocess.run([TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
    text = usage.stdout + usage.stderr
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    cores = "wgmma" if "HGMMA" in code else "mma" if "HMMA" in code else ""
    wide = sum(code.count(instruction) for instruction in WIDE)
    spills = _hottest(code).count("STL")
    late = LEFT_IN_REGISTERS.search(code) is not None and NOT_WAITED_FOR.search(code) is not None
    return Compiled(variant, found["REG"], spills, built.metadata.shared, wide, cores, late)


def _hottest(code: str) -> str:
    """Stretches without jumps, of the shortest loop with products of the tensor cores, that have such: registers that
    are put aside elsewhere, as the sums of another split, cost next to nothing. All of a kernel that has none."""
    lines, labels, loops = code.splitlines(), dict[str, int](), [code]
    for number, line in enumerate(lines):
        if label := LABEL.match(line):
            labels[label[1]] = number
        elif (jump := JUMP.search(line)) and jump[1] in labels:
            loop = "\n".join(lines[labels[jump[1]] : number])
            loops += [loop] if "HGMMA" in loop else []
    stretches = STRETCH.split(min(loops, key=len))
    return "\n".join(stretch for stretch in stretches if "HGMMA" in stretch or len(loops) == 1)


def compile_all(threads: int = 2) -> list[Compiled]:
    """Every variant."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(compile_variant, variants()))


def table(found: Sequence[Compiled]) -> str:
    """As docs/internals/gpu.md shows it."""
    lines = [
        "| kernel | registers | spills | shared memory, KiB | wide loads | tensor cores |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.variant.name} | {each.registers} | {each.spills} | {each.shared_bytes / 1024:.0f} | "
        f"{each.wide_loads} | {each.tensor_cores} |"
        for each in found
    ]
    return "\n".join(lines)
