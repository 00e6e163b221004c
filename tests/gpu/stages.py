"""What a machine with a CUDA device is wanted for, as commands in parts of a few minutes; the most useful are first."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("first", "second", "third", "fourth", "amx")
# Instruction sets of the fused operator, the widest first, with the letters of their arms.
_VECTORS = {"avx512": "v", "avx2": "a"}
_PYTEST = ("-q", "-o", "filterwarnings=default", "-p", "no:cacheprovider")
_FACTS = (
    "nvidia-smi; nvidia-smi -q -d CLOCK,POWER,PERFORMANCE; nvidia-smi topo -m; lscpu; free -g; uname -a; ulimit -l; "
    "grep -o -w -E 'amx[^ ]*|avx512[^ ]*|avx_vnni' /proc/cpuinfo | sort | uniq -c; "
    "cat /sys/kernel/mm/transparent_hugepage/enabled; ls -l /dev/nvidia*; exit 0"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A command and the seconds it may take. Of a sweep `run` is the name, which continues it."""

    name: str
    command: tuple[str, ...]
    most_s: int
    run: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the stages are for a machine.

    `vector` is the instruction set of the fused operator, `amx` whether that is granted, too. `layers` are those of
    Qwen3-30B-A3B, `minutes` those of measuring in a sweep; `dry` asks for no device and takes the smallest model.
    `folder` is where runs are, whose names continue them.
    """

    vector: str = "avx512"
    amx: bool = False
    layers: int = 16
    minutes: float = 1.5
    dry: bool = False
    folder: Path = Path()

    @classmethod
    def of(cls, missing: Mapping[str, str], **others: object) -> Plan:
        """For a machine that lacks what `missing` has a reason for (`ktbench.host.capabilities`)."""
        vector = next((name for name in _VECTORS if not missing[name]), "avx2")
        return cls(vector=vector, amx=not missing["amx"], **others)  # type: ignore[arg-type]

    def stages(self, part: str) -> Iterator[Stage]:
        """The stages of a part, in order."""
        parts = dict(zip(PARTS, (self._first, self._second, self._third, self._fourth, self._amx), strict=True))
        return parts[part]()

    def _first(self) -> Iterator[Stage]:
        """Tests, what a hand-over costs, a decode ladder, and how a step is spent: numbers within minutes."""
        yield Stage(name="facts", command=("bash", "-c", _FACTS), most_s=30)
        yield self._ktbench("doctor", 60, "doctor")
        yield self._module("device", 60, "tests.gpu.facts", "device")
        marked = () if self.dry else ("-m", "gpu")
        yield Stage(name="tests_gpu", command=_pytest("tests/gpu", *marked), most_s=150)
        yield self._module("handover", 60, "tests.gpu.handover", *self._on())
        yield self._sweep("decode_slice", 150, "+ablation=decode", *self._model(4), minutes=0.75)
        graph = () if self.dry else ("engine.cuda_graph=true",)
        yield self._module("profile", 90, "tests.gpu.profile_step", *self._cell(), *graph)
        yield self._ktbench("trace", 60, "trace", *self._cell(), *self._named("trace"))
        deferred = (*graph, "engine.deferral=3")
        yield self._ktbench("trace_deferred", 60, "trace", *self._cell(), *deferred, *self._named("trace_deferred"))
        yield self._ktbench("probe", 90, "probe")
        at_once = ("-n", "logical") if find_spec("xdist") else ()
        yield Stage(name="tests_cuda", command=_pytest("tests/engine/cuda", *at_once), most_s=200)

    def _second(self) -> Iterator[Stage]:
        """Decode: the ladder, deferral and hand-over on one set of weights, prefill on the host and layerwise."""
        ablation = "+ablation=deferral" if self.dry else "+ablation=device"
        yield self._sweep("decode", 240, ablation, *self._model(self.layers), minutes=1.5 * self.minutes)
        if not self.dry:
            yield self._sweep("device_prefill", 150, *self._layerwise())
        yield self._sweep("prefill", 120, "+ablation=prefill", *self._model(self.layers), *self._prompts("2048"))

    def _third(self) -> Iterator[Stage]:
        """DeepSeek-V3 at full width, placement, chunks of prefill as graphs, decode at depth, Fiddler."""
        if not self.dry:
            deep = ("model=deepseek_v3", "model.layers=6", "precision=int8", "engine.device=cuda")
            yield self._sweep("deepseek_v3", 200, "+ablation=deferral", *deep)
        yield self._sweep("placement", 150, "+ablation=placement", *self._model(self.layers))
        if not self.dry:
            yield self._sweep("prefill_graph", 120, *self._in_chunks())
        yield self._sweep("depth", 150, "+ablation=depth", *self._model(self.layers), *self._prompts("64,2048,8192"))
        yield self._sweep("fiddler", 120, "+ablation=decode", *self._model(self.layers), self._fiddler())

    def _fourth(self) -> Iterator[Stage]:
        """Fine-tuning with the experts on the cores: plain PEFT and the kernels, then a whole DeepSeek-V2-Lite."""
        letter = _VECTORS[self.vector]
        host = [f"+{letter}", f"+{letter}+d", *(["+m+d"] if self.amx else [])]
        arms = f"sweep.arms=[{','.join(['base', *host[1:]])}]"
        yield self._sweep("sft", 200, "+ablation=sft/kernels", *self._model(4), arms)
        if not self.dry:
            whole = ("model=deepseek_v2_lite", "model.layers=null", "engine.device=cuda", f"sweep.baseline={host[0]}")
            yield self._sweep("sft_whole", 200, "+ablation=sft/kernels", *whole, f"sweep.arms=[{','.join(host)}]")

    def _amx(self) -> Iterator[Stage]:
        """AMX beside the device, where it is granted: its tests, its kernels, the host's prefill."""
        if not self.amx:
            return
        yield Stage(name="tests_amx", command=_pytest("tests/kernels", "-k", "amx"), most_s=120)
        kernels = ("+ablation=kernels/few_tokens", *(("model=tiny",) if self.dry else ()))
        yield self._sweep("amx_few_tokens", 150, *kernels)
        prefill = ("engine.device=cpu", "sweep.arms=[base,+v+d,+m+d,+v+m+d]", "sweep.baseline=base")
        yield self._sweep("amx_prefill", 150, "+ablation=prefill", *self._model(4), *self._prompts("512"), *prefill)

    def _in_chunks(self) -> tuple[str, ...]:
        host = f"+{_VECTORS[self.vector]}+d"
        shown = ("sweep.name=prefill_graph", f"sweep.baseline={host}", f"sweep.arms=[{host},{host}+c]")
        work = ("workload=prefill", *self._prompts("1024"), "workload.chunk=16,128")
        return *work, *self._model(self.layers), *shown

    def _layerwise(self) -> tuple[str, ...]:
        host = f"+{_VECTORS[self.vector]}+d"
        arms = [host, *(["+m+d"] if self.amx else []), f"{host} device_prefill_tokens=1"]
        shown = ("sweep.name=device_prefill", f"sweep.baseline={host}", "sweep.figure=depth")
        quoted = ",".join(f"'{arm}'" for arm in arms)
        work = ("workload=prefill", *self._prompts("256,1024,4096"))
        return *work, *self._model(self.layers), f"sweep.arms=[{quoted}]", *shown

    def _fiddler(self) -> str:
        host = f"+{_VECTORS[self.vector]}+d"
        return f"sweep.arms=[base,{host}]" if self.dry else f"sweep.arms=[base,fiddler,{host},{host}+c]"

    def _cell(self) -> tuple[str, ...]:
        """One cell in decode, without a graph."""
        return ("workload=decode", *self._model(4), f"engine.{self.vector}=true", "engine.dynamic=true")

    def _on(self) -> tuple[str, ...]:
        return ("--dry-run", "--layers", "4") if self.dry else ()

    def _model(self, layers: int) -> tuple[str, ...]:
        if self.dry:
            return ("model=nano", "model.layers=null", "engine.device=cpu")
        return ("model=qwen3_30b_a3b", f"model.layers={layers}", "engine.device=cuda")

    def _prompts(self, tokens: str) -> tuple[str, ...]:
        return ("workload.prompt=16",) if self.dry else (f"workload.prompt={tokens}",)

    def _sweep(self, name: str, most_s: int, *words: str, minutes: float | None = None) -> Stage:
        lengths = f"measure.max_minutes={0.05 if self.dry else minutes or self.minutes}", "measure.min_rounds=2"
        goes_on = (f"resume={name}",) if (self.folder / "runs" / name).exists() else (f"run_name={name}",)
        return self._ktbench(name, most_s, "sweep", *words, *lengths, *goes_on, run=name)

    def _named(self, name: str) -> tuple[str, ...]:
        """The run of a trace, which cannot be continued, under a name that is free."""
        taken = sorted((self.folder / "runs").glob(f"{name}*"))
        return (f"run_name={name}{len(taken) or ''}",)

    def _ktbench(self, name: str, most_s: int, *words: str, run: str | None = None) -> Stage:
        return Stage(name=name, command=(sys.executable, "-m", "ktbench", *words), most_s=most_s, run=run)

    def _module(self, name: str, most_s: int, *words: str) -> Stage:
        return Stage(name=name, command=(sys.executable, "-m", *words), most_s=most_s)


def _pytest(*words: str) -> tuple[str, ...]:
    folder, *others = words
    return (sys.executable, "-m", "pytest", str(ROOT / folder), f"--rootdir={ROOT}", *others, *_PYTEST)
