"""All that a machine with a CUDA device is wanted for, in calls of a few minutes: tests, then runs worth recording.

    python -m tests.gpu.day prepare [--python 3.12]     where there is a network: wheels for the GPU machine, into .gpu/
    python -m tests.gpu.day first [second third fourth amx]    there; --resume FOLDER goes on where a call ended
    python -m tests.gpu.day first second third --dry-run    without a device: the same on the smallest model, on cores

Everything of a call is in a folder of its own: `call.json` with machine, commit and how each stage ended, `logs/`, and
`runs/`, which belong into `reports/recorded/`. It is packed beside it after every stage, so that a call that is cut off
leaves what it had. A stage that fails does not keep the others from running; exit code 1 says that some are left. Needs
pytest and what ktbench needs; where it is not installed, packages come from `.gpu/` and the extension is built first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.gpu.stages import PARTS, ROOT, Plan, Stage

# By the module that they bring: not on machines that have PyTorch and Transformers alone.
_CARRIED = {
    "hydra": "hydra-core==1.3.*",
    "omegaconf": "omegaconf==2.3.*",
    "msgspec": "msgspec",
    "gguf": "gguf",
    "pynvml": "nvidia-ml-py",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
}
_BUILT = ("antlr4-python3-runtime==4.9.3",)  # released as source only
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_MOST_S = 590
_GRACE_S, _LEAST_S = 15, 5
_SOME_NOISY = 4  # exit code of a sweep whose cells did not all succeed: its records count all the same
_LARGE_BYTES = 8 << 20
_ARRAYS = (".npy", ".npz")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a stage ended: `ok`, `failed` with an exit code, `out of time` when it was stopped, or had `no time` left."""

    name: str
    command: tuple[str, ...]
    how: str
    code: int | None = None
    seconds: float = 0.0


@dataclass(kw_only=True, slots=True)
class Call:
    """One call in its folder: what it was asked, where it runs, and how its stages ended."""

    folder: Path
    limit_s: int
    asked: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, folder: Path, limit_s: int, asked: dict[str, Any]) -> Call:
        """In `folder`; what went well there in an earlier call is not repeated."""
        folder.mkdir(parents=True, exist_ok=True)
        call = cls(folder=folder, limit_s=limit_s, asked=asked)
        if (written := folder / "call.json").exists():
            stages = json.loads(written.read_text())["stages"]
            call.ended = [Ended(**{**one, "command": tuple(one["command"])}) for one in stages if one["how"] == "ok"]
        return call

    @property
    def left_s(self) -> float:
        """Seconds until the call must end."""
        return self.limit_s - (time.monotonic() - self.began)

    @property
    def site(self) -> Path:
        """Where carried packages are installed: for all calls on a machine."""
        return self.folder.parent / "site"

    def is_done(self, stage: Stage) -> bool:
        """Whether the stage ended well."""
        return any(one.name == stage.name and one.how == "ok" for one in self.ended)

    def note(self, ended: Ended) -> None:
        """Keep how a stage ended, here and in the archive."""
        self.ended = [one for one in self.ended if one.name != ended.name] + [ended]
        self.write()
        pack(self)

    def write(self) -> None:
        """Write `call.json` as it is by now."""
        content = {**self.asked, "machine": self.machine, "stages": [asdict(one) for one in self.ended]}
        (self.folder / "call.json").write_text(json.dumps(content, indent=1) + "\n")


def prepare(folder: Path, python: str) -> None:
    """Fetch what a GPU machine without a network lacks, whose Python is of the version `python`, such as 3.12."""
    pip = (sys.executable, "-m", "pip")
    there = ("--python-version", python, "--implementation", "cp", *(f"--platform={one}" for one in _PLATFORMS))
    only = ("--no-deps", "--only-binary=:all:", *there)
    subprocess.run((*pip, "download", *only, "-d", str(folder), *_CARRIED.values()), check=True)
    subprocess.run((*pip, "wheel", "--no-deps", "-w", str(folder), *_BUILT), check=True)


def set_up(call: Call) -> None:
    """Install what was carried, and build the extension where it does not load. Raises CalledProcessError."""
    wheels = sorted((ROOT / ".gpu").glob("*.whl"))
    if wheels and not call.site.exists() and any(find_spec(module) is None for module in _CARRIED):
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(call.site))
        subprocess.run((*pip, *map(str, wheels)), check=True)
    loads = (sys.executable, "-c", "import ktbench._kernels")
    if subprocess.run(loads, cwd=ROOT, check=False, capture_output=True, env=environment(call)).returncode == 0:
        return
    build = call.folder.parent / "build"
    python = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={_pybind11()}")
    subprocess.run(("cmake", "-S", "kernels", "-B", build, "-G", "Ninja", *python), cwd=ROOT, check=True)
    subprocess.run(("cmake", "--build", build, "--target", "_kernels"), cwd=ROOT, check=True)
    for built in build.glob("_kernels*.so"):
        (ROOT / "ktbench" / built.name).write_bytes(built.read_bytes())


def _pybind11() -> str:
    found = find_spec("pybind11")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("pybind11 is not installed: the extension cannot be built")
    return f"{found.submodule_search_locations[0]}/share/cmake/pybind11"


def environment(call: Call) -> dict[str, str]:
    """Of the stages: they run in the folder of the call, with the carried packages and this checkout."""
    paths = [str(call.site), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def machine_facts(call: Call) -> dict[str, Any]:
    """Machine, software and commit as `tests.gpu.facts` finds them. Raises CalledProcessError."""
    command = (sys.executable, "-m", "tests.gpu.facts", "machine")
    told = subprocess.run(command, cwd=call.folder, check=True, stdout=subprocess.PIPE, env=environment(call))
    facts: dict[str, Any] = json.loads(told.stdout)
    return facts


def run(call: Call, stages: Sequence[Stage]) -> list[str]:
    """Run what is not done; gives the names of stages that failed or had no time left."""
    for stage in stages:
        if call.is_done(stage):
            continue
        if call.left_s < _LEAST_S:
            call.note(Ended(name=stage.name, command=stage.command, how="no time"))
        else:
            call.note(_run(call, stage, min(call.left_s, stage.most_s)))
    return [stage.name for stage in stages if not call.is_done(stage)]


def _run(call: Call, stage: Stage, seconds: float) -> Ended:
    """One stage with its own log; it is asked to end when its time is over, so that a sweep keeps its records."""
    print(f"== {stage.name} (at most {seconds:.0f} s): {' '.join(stage.command[1:])}", flush=True)
    began, log = time.monotonic(), call.folder / "logs" / f"{stage.name}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("a") as file:
        code, by_itself = _awaited(stage, call, file, seconds)
    took_s = round(time.monotonic() - began, 1)
    print("\n".join(log.read_text(errors="replace").splitlines()[-15:]))
    well = code == 0 or (stage.run is not None and code == _SOME_NOISY)
    how = ("ok" if well else "failed") if by_itself else "out of time"
    print(f"== {stage.name}: {how}, code {code} after {took_s:.0f} s", flush=True)
    return Ended(name=stage.name, command=stage.command, how=how, code=code, seconds=took_s)


def _awaited(stage: Stage, call: Call, log: Any, seconds: float) -> tuple[int | None, bool]:
    """The exit code, None where the command could not be started, and whether the process ended by itself."""
    try:
        process = subprocess.Popen(stage.command, cwd=call.folder, stdout=log, stderr=log, env=environment(call))
    except OSError as error:
        print(f"{stage.command[0]}: {error.strerror}", file=log)
        return None, True
    try:
        return process.wait(seconds), True
    except subprocess.TimeoutExpired:
        return _ended(process), False
    except BaseException:  # the call itself is asked to end
        _ended(process)
        raise


def _ended(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait()


def pack(call: Call) -> Path:
    """The folder as an archive beside it, without arrays and very large files; whole at any moment."""
    archive = call.folder.with_suffix(".tar.gz")
    new = archive.with_suffix(".new")
    with tarfile.open(new, "w:gz") as packed:
        for path in sorted(path for path in call.folder.rglob("*") if path.is_file()):
            if path.suffix not in _ARRAYS and path.stat().st_size <= _LARGE_BYTES:
                packed.add(path, Path(call.folder.name) / path.relative_to(call.folder))
    return new.replace(archive)


def _limit(text: str) -> int:
    if not text.isdecimal() or not _LEAST_S <= int(text) <= _MOST_S:
        raise argparse.ArgumentTypeError(f"{text}: allowed are {_LEAST_S} to {_MOST_S} seconds")
    return int(text)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("prepare", *PARTS))
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=here, metavar="VERSION", help="`prepare` for a machine with this Python")
    parser.add_argument("--dry-run", action="store_true", help="on the smallest model and cores")
    parser.add_argument("--limit", type=_limit, default=540, metavar="SECONDS", help="of the whole call")
    parser.add_argument("--layers", type=int, default=16, help="of Qwen3-30B-A3B")
    parser.add_argument("--minutes", type=float, default=1.5, help="of measuring in a sweep")
    parser.add_argument("--only", nargs="+", default=(), metavar="STAGE", help="these stages of the parts alone")
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu-out", help="where folders of calls go")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="of an earlier call: what it has is not repeated")
    return parser.parse_args(words)


def _new_folder(asked: argparse.Namespace) -> Path:
    kind = "dry" if asked.dry_run else "gpu"
    folder: Path = asked.out / "_".join([kind, f"{datetime.now(UTC):%Y%m%d-%H%M%S}", *asked.parts])
    return folder


def _asked_to_end(*_: object) -> None:
    raise KeyboardInterrupt


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 where stages are left, 2 for arguments that are wrong."""
    asked = _arguments(words)
    if "prepare" in asked.parts:
        prepare(ROOT / ".gpu", asked.python)
        return 0
    signal.signal(signal.SIGTERM, _asked_to_end)
    told = {name: getattr(asked, name) for name in ("parts", "dry_run", "limit", "layers", "minutes")}
    began = {"began": datetime.now(UTC).isoformat(timespec="seconds")}
    call = Call.open((asked.resume or _new_folder(asked)).resolve(), asked.limit, told | began)
    call.write()
    try:
        left = _carry_out(call, asked)
    finally:
        call.write()
        print(f"kept: {call.folder}, packed: {pack(call)}")
    print(f"left: {', '.join(left)}" if left else "nothing is left")
    return 1 if left else 0


def _carry_out(call: Call, asked: argparse.Namespace) -> list[str]:
    """Names of stages that are left; only `set_up` where nothing could be run."""
    try:
        set_up(call)
        call.machine = machine_facts(call)
    except (OSError, subprocess.CalledProcessError) as error:
        call.note(Ended(name="set_up", command=(), how=f"failed: {error}"))
        return ["set_up"]
    own = {"layers": asked.layers, "minutes": asked.minutes, "dry": asked.dry_run, "folder": call.folder}
    plan = Plan.of(call.machine["missing"], **own)
    stages = [stage for part in asked.parts for stage in plan.stages(part)]
    chosen = [stage for stage in stages if not asked.only or stage.name in asked.only]
    if not chosen:
        print(f"no stages here: {'AMX: ' + call.machine['missing']['amx'] if not asked.only else asked.only}")
    return run(call, chosen)


if __name__ == "__main__":
    sys.exit(main())
