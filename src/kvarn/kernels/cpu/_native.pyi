"""Compiled CPU kernels (csrc/bindings). Tensors are passed as addresses; use kvarn.kernels.cpu, which checks them."""

def usable_instruction_sets() -> list[str]: ...
def emulated_instruction_sets() -> list[str]: ...

class Backend:
    def __init__(self, isa: str) -> None: ...
    def rms_norm(
        self,
        x: int,
        rows: int,
        size: int,
        x_stride: int,
        weight: int,
        eps: float,
        out: int,
        out_stride: int,
        accumulate: bool,
    ) -> None: ...
