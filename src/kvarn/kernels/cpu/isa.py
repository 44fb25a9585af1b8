"""The instruction set the compiled kernels run on."""

from __future__ import annotations

from collections.abc import Mapping

from kvarn.kernels.cpu import _native
from kvarn.kernels.errors import KernelError

VARIABLE = "KVARN_ISA"
"""Names the instruction set, for tests and comparisons; without it the best one this processor has is taken."""


class UnusableInstructionSetError(KernelError):
    """This processor, its operating system or this build of Kvarn lacks the instruction set asked for."""


def chosen_instruction_set(environment: Mapping[str, str]) -> str:
    """The set that KVARN_ISA in `environment` names, else the best.

    Raises UnusableInstructionSetError, which lists the usable ones.
    """
    usable = _native.usable_instruction_sets()
    wanted = environment.get(VARIABLE, "")
    if not wanted:
        return usable[0]
    if wanted in usable or wanted in _native.emulated_instruction_sets():
        return wanted
    raise UnusableInstructionSetError(
        f"{VARIABLE}={wanted}: this machine cannot run it; set one of {', '.join(usable)}, or leave it unset"
    )
