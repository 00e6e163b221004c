"""Opens the peer that cells ask for; each is imported only where it runs."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.engine.protocol import HostRole, System
from ktbench.spec.run_spec import RunSpec


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> System:
    """The peer of cells that share weights, which are loaded. Raises Unsupported, and what the peer raises."""
    first = specs[0]
    if first.workload.phase == "layer":
        from ktbench.peers.layer import open_peer_layer

        return open_peer_layer(specs, host)
    if first.system == "transformers":
        from ktbench.peers.transformers.system import open_transformers

        return open_transformers(first.model, host)
    if first.system == "fiddler":
        from ktbench.peers.fiddler import open_fiddler

        return open_fiddler(first.model, host)
    from ktbench.peers.llama.opening import open_file

    return open_file(first, host)
