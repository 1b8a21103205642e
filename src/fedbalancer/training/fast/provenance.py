"""What a result depends on beside its seed: the processor, and the kernels that were compiled for it.

Compilers and torch choose their instructions by what a processor can do, and sums in another order end in other digits.
So the same seed gives the same bytes on equal processors with equal kernels; both stand in the manifest of a run.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

from fedbalancer.training.fast import kernels

INSTRUCTIONS = ("AVX512F", "AVX2", "AVX", "FMA", "ARM_NEON", "ARM_FEATURE_SVE")
"""Names of compilers' macros for the instructions that decide in which order numbers are summed."""


def processor() -> str:
    """The name of this machine's processor and, if there is a compiler to tell, which instructions kernels use."""
    try:
        words = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        words = None
    name = words[1].strip() if words else platform.processor() or platform.machine()
    try:
        _, macros = kernels.compiler()
    except kernels.NoKernel:
        return name
    defined = set(re.findall(r"#define __(\w+?)(?:__)? ", macros.decode(errors="replace")))
    return ", ".join([name, *(word for word in INSTRUCTIONS if word in defined)])


def description(backend: str) -> dict[str, str]:
    """For the manifest of a run: the processor and, for the backend `fast`, by the name of each kernel the file in the
    cache that is its library, or why torch does its work. Nothing is compiled for the answer."""
    found = {"processor": processor()}
    for source in sorted(Path(__file__).parent.glob("*.c")) if backend == "fast" else ():
        try:
            why = kernels.known(source.stem)
            found[source.stem] = kernels.place(source).name if why is None else f"torch ({why})"
        except kernels.NoKernel as error:
            found[source.stem] = f"torch ({error})"
    return found
