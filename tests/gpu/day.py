"""All that a machine with a CUDA device is wanted for, in parts of a few minutes: tests, then runs worth recording.

    python -m tests.gpu.day prepare                 where there is a network: wheels for the GPU machine, into .gpu/
    python -m tests.gpu.day first [second third]    there; a part that was interrupted continues where it stopped
    python -m tests.gpu.day first second third --dry-run     without a device: the same on the smallest model, on cores

Every stage has a log; a stage that succeeded is not repeated, a sweep that did not end is resumed. What was measured
so far is packed into `gpu_day.tar.gz` whatever happens; its runs belong into `reports/recorded/`. Needs pytest and what
ktbench needs; where it is not installed, packages come from `.gpu/` and the extension is built first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("first", "second", "third")
# Not on machines that have PyTorch and Transformers alone.
_CARRIED = ("hydra-core==1.3.*", "omegaconf==2.3.*", "msgspec", "gguf", "nvidia-ml-py")
_BUILT = ("antlr4-python3-runtime==4.9.3",)  # released as source only
_GRACE_S, _LEAST_S = 15, 5
_SOME_NOISY = 4  # exit code of a sweep whose cells did not all succeed: its records count all the same

_FACTS = "nvidia-smi; nvidia-smi -q -d CLOCK,POWER,PERFORMANCE; nvidia-smi topo -m; lscpu; free -g; uname -a; ulimit -l"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A command and the seconds it may take. Of a sweep `run` is the name, which continues it."""

    name: str
    command: tuple[str, ...]
    most_s: int
    run: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """What the stages are run with; `site` has the carried packages, `out` logs, marks and the archive."""

    out: Path
    limit_s: int
    layers: int
    minutes: float
    dry: bool

    @property
    def site(self) -> Path:
        return self.out / "site"

    def stages(self, part: str) -> Iterator[Stage]:
        return {"first": self._first, "second": self._second, "third": self._third}[part]()

    def _first(self) -> Iterator[Stage]:
        """Facts, tests, and how a step is spent: what has to be right before anything is worth timing."""
        yield Stage(name="facts", command=("bash", "-c", _FACTS), most_s=60)
        yield self._ktbench("doctor", 60, "doctor")
        options = ("-q", "-o", "filterwarnings=default", "-p", "no:cacheprovider")
        marked = () if self.dry else ("-m", "gpu")
        yield Stage(name="tests_gpu", command=_pytest("tests/gpu", *marked, *options), most_s=220)
        for features in ("engine.dynamic=true", "engine.dynamic=true engine.cuda_graph=true engine.deferral=3"):
            name = "trace_deferred" if "deferral" in features else "trace"
            words = ("workload=decode", *self._model(4), "engine.avx512=true", *self._features(features))
            yield self._ktbench(name, 90, "trace", *words)
        yield self._ktbench("probe", 120, "probe")
        at_once = ("-n", "logical") if find_spec("xdist") else ()
        yield Stage(name="tests_cuda", command=_pytest("tests/engine/cuda", *options, *at_once), most_s=240)

    def _second(self) -> Iterator[Stage]:
        """Decode: the ladder, deferral, placement."""
        for ablation in ("decode", "deferral", "placement"):
            yield self._sweep(ablation, 150, f"+ablation={ablation}", *self._model(self.layers))

    def _third(self) -> Iterator[Stage]:
        """Prefill on the host and layerwise, DeepSeek-V3 at full width, depth, Fiddler."""
        yield self._sweep("prefill", 120, "+ablation=prefill", *self._model(self.layers), *self._prompt(2048))
        if not self.dry:
            arms = ("sweep.arms=[+v+d,'+v+d device_prefill_tokens=1']", "sweep.baseline=+v+d", "machine=here")
            words = ("+ablation=device_prefill", *arms, *self._model(self.layers), *self._prompt("256,1024,4096,16384"))
            yield self._sweep("device_prefill", 240, *words)
            deep = ("model=deepseek_v3", "model.layers=6", "precision=int8", "engine.device=cuda")
            yield self._sweep("deepseek_v3", 240, "+ablation=deferral", *deep)
        yield self._sweep("depth", 150, "+ablation=depth", *self._model(self.layers), *self._prompt("64,2048,8192"))
        arms = "sweep.arms=[base,fiddler,+v+d,+v+d+c]" if not self.dry else "sweep.arms=[base,+v+d]"
        yield self._sweep("fiddler", 150, "+ablation=decode", arms, *self._model(self.layers))

    def _model(self, layers: int) -> tuple[str, ...]:
        if self.dry:
            return ("model=nano", "model.layers=null", "engine.device=cpu")
        return ("model=qwen3_30b_a3b", f"model.layers={layers}", "engine.device=cuda")

    def _features(self, words: str) -> tuple[str, ...]:
        return tuple(word for word in words.split() if not (self.dry and "cuda_graph" in word))

    def _prompt(self, tokens: int | str) -> tuple[str, ...]:
        return ("workload.prompt=16",) if self.dry else (f"workload.prompt={tokens}",)

    def _sweep(self, what: str, most_s: int, *words: str) -> Stage:
        name = f"{'dry' if self.dry else 'gpu'}_{what}"
        lengths = (f"measure.max_minutes={0.05 if self.dry else self.minutes}", "measure.min_rounds=2")
        goes_on = (f"resume={name}",) if (ROOT / "runs" / name).exists() else (f"run_name={name}",)
        return self._ktbench(name, most_s, "sweep", *words, *lengths, *goes_on, run=name)

    def _ktbench(self, name: str, most_s: int, *words: str, run: str | None = None) -> Stage:
        return Stage(name=name, command=(sys.executable, "-m", "ktbench", *words), most_s=most_s, run=run)


def _pytest(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pytest", *words)


def prepare(folder: Path) -> None:
    """Fetch what a GPU machine without a network lacks."""
    pip = (sys.executable, "-m", "pip")
    subprocess.run((*pip, "download", "--no-deps", "--only-binary=:all:", "-d", str(folder), *_CARRIED), check=True)
    subprocess.run((*pip, "wheel", "--no-deps", "-w", str(folder), *_BUILT), check=True)


def set_up(day: Day) -> None:
    """Install what was carried, and build the extension where it does not load. Raises CalledProcessError."""
    wheels = sorted((ROOT / ".gpu").glob("*.whl"))
    if wheels and not day.site.exists():
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(day.site))
        subprocess.run((*pip, *map(str, wheels)), check=True)
    loads = (sys.executable, "-c", "import ktbench._kernels")
    if subprocess.run(loads, cwd=ROOT, check=False, capture_output=True, env=_environment(day)).returncode == 0:
        return
    build = day.out / "build"
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


def _environment(day: Day) -> dict[str, str]:
    paths = [str(day.site), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def run(day: Day, stages: Sequence[Stage], began: float) -> list[str]:
    """Run what is not done; gives the names of stages that failed or had no time left."""
    open_stages = []
    for stage in stages:
        mark = day.out / "done" / stage.name
        left = day.limit_s - (time.monotonic() - began)
        if mark.exists():
            continue
        if left < _LEAST_S or not _succeeds(day, stage, min(left, stage.most_s)):
            open_stages.append(stage.name)
            continue
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    return open_stages


def _succeeds(day: Day, stage: Stage, seconds: float) -> bool:
    """Runs one stage with its own log; it is interrupted when its time is over, so that a sweep keeps its records."""
    print(f"== {stage.name} (at most {seconds:.0f} s): {' '.join(stage.command[1:])}", flush=True)
    began, log = time.monotonic(), day.out / "logs" / f"{stage.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        process = subprocess.Popen(stage.command, cwd=ROOT, stdout=file, stderr=file, env=_environment(day))
        code, ended = _awaited(process, seconds)
    print("\n".join(log.read_text(errors="replace").splitlines()[-15:]))
    print(f"== {stage.name} ended with {code} after {time.monotonic() - began:.0f} s", flush=True)
    return ended and (code == 0 or (stage.run is not None and code == _SOME_NOISY))


def _awaited(process: subprocess.Popen[bytes], seconds: float) -> tuple[int, bool]:
    """The exit code, and whether the process ended by itself."""
    try:
        return process.wait(seconds), True
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        return process.wait(_GRACE_S), False
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait(), False


def pack(day: Day, runs: Sequence[str]) -> Path:
    """Logs of the stages, and logs and pages of the runs."""
    archive = day.out / "gpu_day.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        if (day.out / "logs").exists():
            packed.add(day.out / "logs", "logs")
        for name in runs:
            if (ROOT / "runs" / name).exists():
                packed.add(ROOT / "runs" / name, f"runs/{name}")
    return archive


def main() -> int:
    """Exit code 1 where stages are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("prepare", *PARTS))
    parser.add_argument("--dry-run", action="store_true", help="on the smallest model and cores")
    parser.add_argument("--limit", type=int, default=470, metavar="SECONDS", help="of the whole call")
    parser.add_argument("--layers", type=int, default=16, help="of Qwen3-30B-A3B")
    parser.add_argument("--minutes", type=float, default=1.5, help="of measuring in a sweep")
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu-out", help="where logs and the archive go")
    asked = parser.parse_args()
    began, out = time.monotonic(), asked.out.resolve() / ("dry" if asked.dry_run else "real")
    day = Day(out=out, limit_s=asked.limit, layers=asked.layers, minutes=asked.minutes, dry=asked.dry_run)
    if "prepare" in asked.parts:
        prepare(ROOT / ".gpu")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    stages = [stage for part in asked.parts for stage in day.stages(part)]
    try:
        set_up(day)
        left = run(day, stages, began)
    finally:
        print(f"packed: {pack(day, [stage.run for stage in stages if stage.run])}")
    print(f"left: {', '.join(left)}" if left else "nothing is left")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
