"""Opens the peer of a worker's cells, by the module that the peer table names for it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import cast

from ktbench.engine.protocol import HostRole, System, Unsupported
from ktbench.spec.peers import BY_NAME
from ktbench.spec.run_spec import RunSpec


def open_peer(specs: Sequence[RunSpec], host: HostRole) -> System:
    """The peer of cells that share weights, which are loaded; calls `open_peer(specs, host)` of its module.

    Raises Unsupported for a phase that the peer does not run, and what its own function raises.
    """
    peer, phase = BY_NAME[specs[0].system], specs[0].workload.phase
    if phase not in peer.phases:
        raise Unsupported(f"{peer.name} runs {' and '.join(peer.phases)}, not workload.phase={phase}")
    return cast("System", import_module(peer.opener).open_peer(specs, host))
