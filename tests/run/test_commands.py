"""The command that starts a worker."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from ktbench.host.software import FoundPeer
from ktbench.run import commands
from ktbench.run.commands import SERVE, serve_command
from ktbench.spec.peers import PeerSpec
from tests.tiny import tiny_spec

ROOT = Path(__file__).parents[2]


def test_our_engine_and_what_is_installed_here_run_under_this_interpreter() -> None:
    assert serve_command(tiny_spec()) == SERVE
    assert serve_command(tiny_spec(system="transformers")) == SERVE


def test_a_bare_environment_finds_everything_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setattr(commands, "find_peer", lambda peer, spec: FoundPeer(python=python, version="1"))
    command = serve_command(tiny_spec(system="kt-kernel", phase="layer", peer=PeerSpec(python=python)))
    assert command[0] == python != sys.executable
    imports = command[2].replace("sys.exit(main())", "import torch, msgspec; print(main.__module__, sys.executable)")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where the tests run from a checkout that is not installed
    done = subprocess.run([python, "-c", imports], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["ktbench.run.serve", python], done.stderr
