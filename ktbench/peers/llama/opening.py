"""Opens what runs a cell's GGUF file: the library, or the program."""

from __future__ import annotations

from ktbench.engine.gguf.export import kept_file
from ktbench.engine.gguf.header import read_header
from ktbench.engine.protocol import HostRole, System
from ktbench.peers.llama.black_box import require_types
from ktbench.spec.run_spec import RunSpec


def open_file(spec: RunSpec, host: HostRole) -> System:
    """llama.cpp or llama-bench with the file of a cell, which must be there.

    Raises Unsupported for one of other types than the cell's precision, and ValueError as they do.
    """
    file = kept_file(spec)
    require_types(read_header(file.path), file, spec.precision)
    if spec.system == "llama-bench":
        from ktbench.peers.llama.bench import open_llama_bench

        assert spec.peer.llama_bench is not None  # without one its cells are not run
        return open_llama_bench(spec.peer.llama_bench, file.path, spec.model, host, file.weights)
    from ktbench.peers.llama.system import open_llama

    return open_llama(file.path, spec.model, host, file.weights)
