"""ik_llama.cpp through its llama-bench, which reads the same files and differs from llama.cpp's in its options."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ktbench.engine.protocol import HostRole
from ktbench.peers.llama.bench import Dialect, LlamaBench, open_program
from ktbench.resources import built_program
from ktbench.spec.run_spec import RunSpec, WorkloadSpec

# Before its repetitions a prefill test runs only a single token, so the first one touches unmapped memory.
_WARM_UPS = 1
# Weights are repacked for its kernels while loading, which excludes mmap; gate and up of the experts are fused.
_FASTEST = {"-rtr": 1, "-mmp": 0, "-fmoe": 1, "-thp": 1}


def _options(workload: WorkloadSpec) -> dict[str, object]:
    """`-gp` generates after an untimed prompt (llama-bench.cpp: TEST_KIND_GP), like llama.cpp's `-d`."""
    if workload.phase == "prefill":
        test: dict[str, object] = {"-p": workload.prompt, "-n": 0, "-r": workload.steps + _WARM_UPS}
    else:
        test = {"-p": 0, "-n": 0, "-gp": f"{workload.prompt},{workload.steps}", "-r": 1}
    return test | _FASTEST | {"-o": "json"}


IK_LLAMA = Dialect(
    options=_options,
    row=re.compile(r"^  \{\n.*?^  \}", re.MULTILINE | re.DOTALL),
    warm_ups=_WARM_UPS,
    shown=("repack", "fused_moe", "use_thp"),
)


class IkLlama(LlamaBench):
    """See `LlamaBench`."""

    name = "ik_llama.cpp"


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> IkLlama:
    """The llama-bench in `peer.ik_llama` on the GGUF file of these cells; raises as that of `LlamaBench`."""
    folder = specs[0].peer.ik_llama
    program = None if folder is None else built_program("llama-bench", folder)
    assert program is not None  # otherwise its cells do not run
    return open_program(IkLlama, program, IK_LLAMA, specs[0], host)
