"""Where peers are found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ktbench.host import software
from ktbench.host.software import find_peer, interpreters, peer_reason
from ktbench.spec.peers import BY_NAME, PeerSpec


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty checkout."""
    monkeypatch.setattr(software, "checkout", lambda: tmp_path)
    return tmp_path


def python_with(version: str, folder: Path) -> str:
    """A stand-in for an interpreter whose environment has one version of everything; empty for nothing."""
    program = folder / f"python-{version or 'empty'}"
    program.write_text(f"#!/bin/sh\n{f'echo {version}' if version else 'exit 1'}\n")
    program.chmod(0o755)
    return str(program)


def test_what_comes_with_ktbench_is_here() -> None:
    found = find_peer(BY_NAME["transformers"], PeerSpec())
    assert found is not None
    assert found.python == sys.executable
    assert peer_reason(BY_NAME["transformers"], PeerSpec()) == ""


def test_a_named_interpreter_is_the_only_one_asked(tmp_path: Path) -> None:
    peer, has, lacks = BY_NAME["kt-kernel"], python_with("0.7.2", tmp_path), python_with("", tmp_path)
    found = find_peer(peer, PeerSpec(python=has))
    assert found is not None
    assert (found.python, found.version) == (has, "0.7.2")
    assert find_peer(peer, PeerSpec(python=lacks)) is None
    why = peer_reason(peer, PeerSpec(python=lacks))
    assert (
        why == f"kt-kernel is not installed in the environment of peer.python={lacks}: "
        "nox -s peers makes an environment with it"
    )
    assert peer_reason(peer, PeerSpec(python="/nowhere/python")) == "peer.python=/nowhere/python: no such program"


def test_the_environment_of_the_nox_session_comes_second(checkout: Path) -> None:
    assert interpreters(PeerSpec()) == (sys.executable,)
    session = checkout / software.SESSION_PYTHON
    session.parent.mkdir(parents=True)
    session.write_text("")
    assert interpreters(PeerSpec()) == (sys.executable, str(session))


@pytest.mark.parametrize("name", ["llama-bench", "llama-server"])
def test_a_program_is_asked_for_by_path(name: str, tmp_path: Path) -> None:
    peer, key = BY_NAME[name], name.replace("-", "_")
    assert f"set peer.{key}=PATH" in peer_reason(peer, PeerSpec())
    assert peer_reason(peer, PeerSpec(**{key: "/nowhere"})) == f"peer.{key}=/nowhere: no such program"
    assert peer_reason(peer, PeerSpec(**{key: python_with("1", tmp_path)})) == ""


def build_with(text: str, folder: Path) -> str:
    """A stand-in for a build whose llama-bench is this shell script."""
    program = folder / "bin" / "llama-bench"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("echo '  -rtr, --run-time-repack <0|1>'", ""),
        ("echo '  -d, --n-depth <n>'", "not ik_llama.cpp's"),
        ("echo 'libllama.so: cannot open' >&2; exit 127", "exits with 127: libllama.so: cannot open"),
        ("kill -ILL $$", "exits with -4: it prints nothing"),
    ],
)
def test_a_build_is_asked_what_it_is(text: str, says: str, tmp_path: Path) -> None:
    build = build_with(text, tmp_path / "build")
    for folder in (build, f"{build}/bin", str(tmp_path)) if not says else (build,):
        why = peer_reason(BY_NAME["ik_llama.cpp"], PeerSpec(ik_llama=folder))
        assert says in why and bool(why) == bool(says) and "\n" not in why


def test_a_folder_without_a_build_says_how_to_get_one(tmp_path: Path) -> None:
    peer = BY_NAME["ik_llama.cpp"]
    assert "peer.ik_llama=FOLDER" in peer_reason(peer, PeerSpec())
    for folder in (tmp_path, tmp_path / "gone"):
        why = peer_reason(peer, PeerSpec(ik_llama=str(folder)))
        assert why.startswith(f"peer.ik_llama={folder}: no") and "cmake" in why
    program = Path(build_with("", tmp_path / "unbuilt")) / "bin" / "llama-bench"
    program.write_bytes(b"no program")
    assert "cannot be run" in peer_reason(peer, PeerSpec(ik_llama=str(tmp_path / "unbuilt")))
