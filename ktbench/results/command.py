"""The commands that run one cell again: timed, or on a suite."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ktbench.resources import shipped
from ktbench.results.settings import flattened, setting_text
from ktbench.spec.engine import PAPER_AMX_MIN_TOKENS, EngineSpec
from ktbench.spec.features import BY_NAME
from ktbench.spec.inject import InjectSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.peers import OURS, PeerSpec
from ktbench.spec.record import Evidence
from ktbench.spec.run_spec import MeasureSpec, RunSpec, WorkloadSpec
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.suite import SuiteSpec


def command_of(spec: RunSpec, planned_with: Sequence[str] = (), evidence: Iterable[Evidence] = ()) -> str:
    """`python -m ktbench run …` with every override that differs from the defaults, one line for a shell.

    A feature that only the `evidence` of a log knows is among them: this version refuses it, and runs nothing else.
    """
    known = {*BY_NAME, *spec.engine.own}
    others = (one for one in evidence if one.feature not in known and one.wanted)
    return shell_line([*_words(spec, planned_with), *(f"engine.{one.feature}={one.asked}" for one in others)])


def shell_line(words: Iterable[str]) -> str:
    """Words quoted for a shell; those with control characters as `$'...'`, which bash and newer shells read."""
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in words)


def _escaped(word: str) -> str:
    letters = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "'\\" else f"\\x{byte:02x}" for byte in os.fsencode(word)
    )
    return f"$'{''.join(letters)}'"


def _words(spec: RunSpec, planned_with: Sequence[str]) -> list[str]:
    """Facts of an architecture that were overridden one by one or are those of a file, a rule file and a machine that
    are not shipped ones, are taken over from the command that planned the run.
    """
    facts = [word for word in planned_with if _key(word).startswith("model.config")] or list(_selections(spec))
    rules = [word for word in planned_with if word.startswith("inject.file=")]
    if not rules and spec.inject != InjectSpec():
        rules = [f"inject={spec.inject.name}"]
    machine = _machine(spec.machine, planned_with) if spec.machine else ()
    name = () if any(_key(word) == "model.config" for word in facts) else (f"model={spec.model.name}",)
    kept = (("packed", spec.model.packed), ("adapter", spec.model.adapter))
    folders = [f"model.{key}={folder}" for key, folder in kept if folder is not None]
    model = [*_model(spec, name), *facts, *folders]
    return ["python", "-m", "ktbench", "run", *machine, *model, *rules, *_rest(spec)]


# What a suite was fitted with is taken over from the command that planned the run.
_OF_A_SUITE = ("tasks", "limit", "data_dir", "confirm_unsafe")
_OF_TIMED_STEPS = ("workload", "measure")


def eval_command(spec: RunSpec, suite: SuiteSpec, planned_with: Sequence[str]) -> str:
    """`python -m ktbench eval +suite=NAME ...`. What was timed as well is left out: `run` times it again."""
    of_suite = [word for word in planned_with if _key(word) in _OF_A_SUITE or _key(word).startswith("suite.")]
    own = [word for word in planned_with if _key(word) == "suite" and word.strip("'\"").endswith(".yaml")]
    python, module, name, _, *words = _words(spec, planned_with)
    kept = [word for word in words if _key(word).partition(".")[0] not in _OF_TIMED_STEPS]
    return shell_line([python, module, name, "eval", *(own or [f"+suite={suite.name}"]), *of_suite, *kept])


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _machine(machine: MachineSpec, planned_with: Sequence[str]) -> Iterator[str]:
    """By its name or its file, and what is not as described there."""
    described = shipped(f"machine/{machine.name}")
    own = [word for word in planned_with if word.startswith("machine=")]
    yield f"machine={machine.name}" if described or not own else own[-1]
    for name in machine.changed:
        yield f"machine.{name}={setting_text(getattr(machine, name))}"
    for name in ("vector", "gpu", "calibration"):
        if name in described and getattr(machine, name) != described[name]:
            yield f"machine.{name}={setting_text(getattr(machine, name))}"


def _model(spec: RunSpec, name: Sequence[str]) -> Iterator[str]:
    """`name` selects the model where it is no checkpoint."""
    model = spec.model
    if model.path is not None:
        yield f"model.path={model.path}"
        return
    yield from name
    if spec.workload.phase == "layer":
        yield f"model.experts={model.shape.experts}"
    if model.is_slice:
        yield f"model.layers={model.shape.layers}"
    yield "model.vocab=full" if model.shape.vocab == model.full_vocab else f"model.vocab={model.shape.vocab}"
    if model.seed:
        yield f"model.seed={model.seed}"


def _selections(spec: RunSpec) -> Iterator[str]:
    """How many experts a token selects, where an axis set that: the one fact of an architecture that axes vary."""
    key, usual = "num_experts_per_tok", shipped(f"model/{spec.model.name}").get("config", {})
    if key in usual and spec.model.config.get(key) != usual[key]:
        yield f"model.config.{key}={spec.model.config[key]}"


def _rest(spec: RunSpec) -> Iterator[str]:
    phase = spec.workload.phase
    yield f"workload={phase}"
    if spec.system != OURS:
        yield f"system={spec.system}"
        yield from _changed("peer", spec.peer, PeerSpec(), skip=("peer.operator_id",))
    for name, packs in (("precision", spec.engine.fused), ("device_precision", spec.engine.packed_dense)):
        # Without it, a checkpoint is packed as it is stored.
        if getattr(spec, name) != "bf16" or (packs and spec.model.path is not None):
            yield f"{name}={getattr(spec, name)}"
    plain = WorkloadSpec(
        phase=phase,
        prompt=2 if phase == "train" else 1,
        steps=1,
        routing="balanced" if phase == "layer" else "model",
        stream=None if spec.workload.stream is None else StreamSpec(),
        adapters=None if phase != "train" else "both",
        lora_rank=None if phase != "train" else 8,
        recompute=None if phase != "train" else True,
    )
    yield from (f"workload.{name}={getattr(spec.workload, name)}" for name in ("prompt", "steps"))
    yield from _changed("workload", spec.workload, plain, skip=("workload.phase", "workload.prompt", "workload.steps"))
    yield from _changed("engine", spec.engine, EngineSpec(), skip=("engine.own_id", *_idle(spec.engine)))
    if spec.machine is not None and spec.machine.gpu is not None and spec.engine.device == "cpu":
        yield "engine.device=cpu"  # such a machine's device is its GPU unless stated otherwise
    if spec.machine is None:
        yield from _changed("measure", spec.measure, MeasureSpec())


def _idle(engine: EngineSpec) -> tuple[str, ...]:
    """The threshold of a hybrid that is none, as logs hold it that were written before `auto` was its default."""
    former = engine.amx_min_tokens == PAPER_AMX_MIN_TOKENS and not engine.hybrid
    return ("engine.amx_min_tokens",) if former else ()


def _changed(part: str, value: Any, plain: Any, skip: tuple[str, ...] = ()) -> Iterator[str]:
    pairs = zip(flattened(part, value), flattened(part, plain), strict=True)
    return (f"{key}={setting_text(mine)}" for (key, mine), (_, usual) in pairs if mine != usual and key not in skip)
