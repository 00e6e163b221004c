"""Opens what runs a cell's GGUF file: the library, or the program."""

from __future__ import annotations

from ktbench.core.spec import RunSpec
from ktbench.engine.gguf.kept import kept_file
from ktbench.engine.protocol import HostRole, System


def open_file(spec: RunSpec, host: HostRole) -> System:
    """llama.cpp or llama-bench with the file of a cell, which must be there. Raises ValueError as they do."""
    file = kept_file(spec)
    if spec.system == "llama-bench":
        from ktbench.peers.llama.bench import open_llama_bench

        return open_llama_bench(spec.peer.llama_bench or "llama-bench", file.path, spec.model, host, file.weights)
    from ktbench.peers.llama.system import open_llama

    return open_llama(file.path, spec.model, host, file.weights)
