"""What llama.cpp cannot be asked for, however it is run."""

from __future__ import annotations

from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.peers.support import unsupported
from ktbench.spec.run_spec import RunSpec


def require(spec: RunSpec, most_sequences: int) -> None:
    """Raises Unsupported for what its cell cannot be run as, and for more than so many sequences."""
    if why := unsupported(spec):
        raise Unsupported(why)
    if spec.workload.batch > most_sequences:
        raise Unsupported(f"workload.batch={spec.workload.batch}: {spec.system} runs at most {most_sequences} here")


def cores_of(spec: RunSpec, host: HostRole) -> int:
    """How many threads it may use at most. Raises ValueError for more than `host` has cores."""
    threads = spec.engine.threads or host.cores
    if threads > host.cores:
        raise ValueError(f"engine.threads={threads}: allowed are 1 to {host.cores} here")
    return threads
