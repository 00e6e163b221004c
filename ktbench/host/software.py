"""Versions of packages and programs, and where peers are installed, without importing anything heavy."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from ktbench.host.cuda import read_cuda_devices
from ktbench.resources import built_program, checkout, in_checkout
from ktbench.spec.peers import Peer, PeerSpec

PACKAGES = ("torch", "transformers", "numpy")
_PROGRAM_TIMEOUT_S = 5.0
# `g++ (Debian 12.2.0-14) 12.2.0`, `Cuda compilation tools, release 13.0, V13.0.88`, llama.cpp's `version: 5581 (a1b2)`
_VERSION = re.compile(r"version: (\d+)|(\d+\.\d+(?:\.\d+)*)")
# `sm_75 sm_80 sm_90 compute_120`; CUDA names architectures so.
_ARCHITECTURES = re.compile(rb"\0(sm_\d+[a-z]?(?: (?:sm|compute)_\d+[a-z]?)*)\0")
# Made by `nox -s peers`, see noxfile.py.
SESSION_PYTHON = ".nox/peers/bin/python"
_PRINT_VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
_PEER_TIMEOUT_S = 20.0


def package_version(name: str) -> str | None:
    """Version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBuild:
    """The installed PyTorch: `cuda` is the version of CUDA that it was built for, None without.

    `architectures` are those for which it has kernels (`sm_90`, `compute_120`), empty if unknown.
    """

    version: str
    cuda: str | None
    architectures: tuple[str, ...] = ()


def torch_build() -> TorchBuild | None:
    """Read from its files, since importing it takes a second; None if it is not installed."""
    version = package_version("torch")
    spec = importlib.util.find_spec("torch") if version is not None else None
    if version is None or spec is None or spec.origin is None:
        return None
    stated = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", stated, re.MULTILINE)
    if match is None:
        return TorchBuild(version=version, cuda=None)
    library = Path(spec.origin).with_name("lib") / "libtorch_python.so"
    return TorchBuild(version=version, cuda=match.group(1), architectures=_architectures(library))


def _architectures(library: Path) -> tuple[str, ...]:
    """The result of `torch.cuda.get_arch_list()`, from a string in the library of PyTorch's bindings."""
    match = _ARCHITECTURES.search(library.read_bytes()) if library.is_file() else None
    return tuple(match.group(1).decode().split()) if match else ()


def program_versions(names: tuple[str, ...]) -> dict[str, str | None]:
    """Program -> the version it prints, None if it is not on the PATH; all run at the same time."""
    running = {name: _start(path) if (path := shutil.which(name)) else None for name in names}
    return {name: None if process is None else _printed_version(process) for name, process in running.items()}


def _start(path: str) -> subprocess.Popen[str]:
    return subprocess.Popen([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _printed_version(process: subprocess.Popen[str]) -> str:
    with process:
        try:
            text, _ = process.communicate(timeout=_PROGRAM_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return "did not answer"
    return parse_version(text) or "of unknown version"


def parse_version(text: str) -> str | None:
    """The version in a program's output for `--version`; None without one."""
    match = _VERSION.search(text)
    return match and (match.group(1) or match.group(2))


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPeer:
    """An installed peer: the interpreter that has it, and its version, empty for those that ship with ktbench."""

    python: str
    version: str


def find_peer(peer: Peer, spec: PeerSpec) -> FoundPeer | None:
    """Where a peer is installed, None if it is not."""
    if not peer.package:
        return FoundPeer(python=sys.executable, version="")
    for python in interpreters(spec):
        if version := _version(python, peer.package):
            return FoundPeer(python=python, version=version)
    return None


def peer_reason(peer: Peer, spec: PeerSpec, *, starts: bool = True) -> str:
    """Why a peer cannot run here, with the command that installs it; empty if it can.

    Unless it `starts` programs to identify them, an existing program counts as the expected one.
    """
    if peer.unusable:
        return peer.unusable
    if peer.name in _REASONS:
        return _REASONS[peer.name](spec, starts)
    others = peer.package and interpreters(spec) != (sys.executable,)
    if spec.python is not None and others and shutil.which(spec.python) is None:
        return f"peer.python={spec.python}: no such program"
    if (others and not starts) or find_peer(peer, spec) is not None:
        return ""
    where = "" if spec.python is None else f" in the environment of peer.python={spec.python}"
    return f"{peer.package} is not installed{where}: {in_checkout(peer.install)} makes an environment with it"


def interpreters(spec: PeerSpec) -> tuple[str, ...]:
    """Interpreters to look for peers, in order."""
    if spec.python is not None:
        return (spec.python,)
    session = checkout() / SESSION_PYTHON
    return (sys.executable, str(session)) if session.is_file() else (sys.executable,)


def _program_reason(key: str, program: str | None) -> str:
    if program is None:
        program = key.replace("_", "-")
        builds = in_checkout("nox -s llama_programs")
        return f"set peer.{key}=PATH to the program {program} of a llama.cpp build ({builds} makes one)"
    path = shutil.which(program)
    return "" if path and os.access(path, os.X_OK) else f"peer.{key}={program}: no such program"


# An option that only its program has, and the commands that build it.
_IK_OPTION = "--run-time-repack"
_IK_BUILD = "cmake -B build -DGGML_NATIVE=ON && cmake --build build --target llama-bench"


def _ik_reason(folder: str | None, starts: bool) -> str:
    if folder is None:
        return f"set peer.ik_llama=FOLDER to a build of github.com/ikawrakow/ik_llama.cpp ({_IK_BUILD})"
    program = built_program("llama-bench", folder)
    if program is None:
        missing = "no program llama-bench in it" if Path(folder).is_dir() else "no such folder"
        return f"peer.ik_llama={folder}: {missing}; build ik_llama.cpp: {_IK_BUILD}"
    why = _help_reason(program) if starts else ""
    return why and f"peer.ik_llama={folder}: {why}"


@cache
def _help_reason(program: str) -> str:
    """Why a program is not a llama-bench of ik_llama.cpp that runs here; empty if it is."""
    try:
        shown = subprocess.run(
            [program, "-h"], capture_output=True, text=True, errors="replace", timeout=_PROGRAM_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"llama-bench cannot be run: {getattr(error, 'strerror', None) or 'it does not end'}"
    if shown.returncode:
        last = (shown.stderr.strip().splitlines() or ["it prints nothing"])[-1]
        return f"llama-bench exits with {shown.returncode}: {last}"
    return "" if _IK_OPTION in shown.stdout else "its llama-bench is not ik_llama.cpp's"


# Peers that no package provides, and why they cannot run here.
_REASONS: Mapping[str, Callable[[PeerSpec, bool], str]] = {
    "llama-bench": lambda spec, starts: _program_reason("llama_bench", spec.llama_bench),
    "llama-server": lambda spec, starts: _program_reason("llama_server", spec.llama_server),
    "ik_llama.cpp": lambda spec, starts: _ik_reason(spec.ik_llama, starts),
    "fiddler": lambda spec, starts: read_cuda_devices().reason,
    "openai": lambda spec, starts: "" if spec.url else "set peer.url=http://HOST:PORT to a running server",
}


@cache
def _version(python: str, package: str) -> str | None:
    if python == sys.executable:
        return package_version(package)
    try:
        done = subprocess.run(
            [python, "-c", _PRINT_VERSION, package],
            capture_output=True,
            text=True,
            timeout=_PEER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
