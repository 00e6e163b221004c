"""Where peers are installed: in this environment, in one that is named, or in that of the nox session `peers`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from ktbench.host.cuda import read_cuda_devices
from ktbench.host.software import package_version
from ktbench.resources import checkout
from ktbench.spec.peers import Peer, PeerSpec

# Made by `nox -s peers`, see noxfile.py.
SESSION_PYTHON = ".nox/peers/bin/python"
_ASK = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPeer:
    """An installed peer: the interpreter that has it and its version, empty for what comes with ktbench."""

    python: str
    version: str


def find_peer(peer: Peer, spec: PeerSpec) -> FoundPeer | None:
    """Where a peer is installed, None where it is not."""
    if not peer.package:
        return FoundPeer(python=sys.executable, version="")
    for python in interpreters(spec):
        if version := _version(python, peer.package):
            return FoundPeer(python=python, version=version)
    return None


def peer_reason(peer: Peer, spec: PeerSpec) -> str:
    """Why a peer cannot run here, with the command that installs it; empty where it can."""
    if peer.name == "llama-bench":
        return _program_reason(spec.llama_bench)
    if peer.name == "fiddler":
        return read_cuda_devices().reason
    if spec.python is not None and peer.package and shutil.which(spec.python) is None:
        return f"peer.python={spec.python}: no such program"
    if find_peer(peer, spec) is not None:
        return ""
    where = "" if spec.python is None else f" in the environment of peer.python={spec.python}"
    return f"{peer.package} is not installed{where}: {peer.install} makes an environment with it"


def interpreters(spec: PeerSpec) -> tuple[str, ...]:
    """Interpreters to look for peers, in order."""
    if spec.python is not None:
        return (spec.python,)
    session = checkout() / SESSION_PYTHON
    return (sys.executable, str(session)) if session.is_file() else (sys.executable,)


def _program_reason(program: str | None) -> str:
    if program is None:
        return "set peer.llama_bench=PATH to the program llama-bench of a llama.cpp build"
    found = shutil.which(program)
    return "" if found and os.access(found, os.X_OK) else f"peer.llama_bench={program}: no such program"


@cache
def _version(python: str, package: str) -> str | None:
    if python == sys.executable:
        return package_version(package)
    try:
        asked = subprocess.run(
            [python, "-c", _ASK, package], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None
