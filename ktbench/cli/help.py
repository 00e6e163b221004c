"""`VERB --help`: what a verb takes, from the schema of the configuration, and examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

import yaml

from ktbench.cli.keys import (
    OF_A_CELL,
    OF_RUN,
    OF_RUNS,
    OF_SUITES,
    SPECS,
    AdviceArguments,
    Key,
    ProbeArguments,
    ValidationArguments,
    keys_of,
)
from ktbench.resources import data_folder, option_files
from ktbench.serve.settings import ChatSettings, ServerSettings
from ktbench.spec.sweep import FigureStyle

_OUTPUT = Key(name="output", default="", kind="FILE", about="where to write")
_WITH = Key(name="with", default="", kind="RUN", about="one table of speeds and of answers of another run")
_LAUNCHERS = ("joblib", "ray", "submitit_local", "submitit_slurm")
_ON_NODES = (
    Key(name="hydra/launcher", default="", choices=_LAUNCHERS, about="spreads cells over nodes"),
    Key(name="spread.jobs", default="", kind="N", about="parts of such a sweep at most"),
    Key(name="shard", default="", kind="I/N", about="only the I-th of N parts, with run_name=NAME; then `merge NAME`"),
)
_WHAT_IF = (
    Key(name="what_if", default="", kind="PRICES.yaml", about="a price list of machines"),
    Key(name="what_if.target", default="", kind="X", about="tokens/s to reach"),
)
_COMPARED = (
    Key(name="tolerance", default="0.03", kind="X", about="relative change that counts as none"),
    Key(name="different_machines", default="false", choices=("true", "false"), about="compare them all the same"),
)
_WIDTH = 110
_GROUPS = ("model", "workload", "machine", "inject")
_CELL = ("engine", "workload", "peer")
# Values that the group of an option takes beside its options.
_BESIDE = {"machine": ("local", "FILE.yaml"), "suite": ("FILE.yaml",), "ablation": ("FILE.yaml",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Help:
    """What a verb takes: words before its keys, options of groups, keys, and examples with what they do."""

    words: str = ""
    groups: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    specs: tuple[str, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()

    def all_keys(self) -> Iterator[Key]:
        """Its keys, those of specs last."""
        yield from self.keys
        for name in self.specs:
            yield from keys_of(name, SPECS[name])


def _of_cells(*keys: Key, specs: tuple[str, ...] = _CELL, groups: tuple[str, ...] = (), **rest: object) -> Help:
    return Help(groups=(*groups, *_GROUPS), keys=(*keys, *OF_A_CELL), specs=specs, **rest)  # type: ignore[arg-type]


HELP: Mapping[str, Help] = {
    "doctor": Help(examples=(("", "what this machine can run"),)),
    "probe": Help(
        keys=tuple(keys_of("", ProbeArguments)),
        examples=(("", "then machine=local simulates this machine"),),
    ),
    "plan": _of_cells(
        *_WHAT_IF, *OF_RUNS, *OF_SUITES,
        groups=("ablation", "suite"), specs=(*_CELL, "measure", "sweep"), words="[+ablation=NAME]",
        examples=(
            ("+ablation=decode", "cells, memory and minutes of a sweep"),
            ("+ablation=decode machine=paper_a100", "which cells a described machine can run"),
        ),
    ),
    "run": _of_cells(
        *OF_RUN, *OF_RUNS,
        specs=(*_CELL, "measure"),
        examples=(
            ("model=mixtral_8x7b model.layers=2 engine.best=true", "one cell, measured here"),
            ("model=deepseek_v3 machine=paper_a100 engine.best=true", "simulated on a described machine"),
            ("inject.show=true model=tiny", "which modules are replaced"),
        ),
    ),
    "sweep": _of_cells(
        *OF_RUNS, *_ON_NODES,
        groups=("ablation",), specs=(*_CELL, "measure", "sweep"), words="+ablation=NAME",
        examples=(
            ("+ablation=decode", "the decode breakdown on this machine"),
            ("+ablation=decode model=tiny model.layers=null", "the same within seconds, on a toy model"),
            ("+ablation=decode machine=paper_a100", "simulated on the paper's testbed"),
            ("precision=bf16,int8 engine.best=true model.layers=4", "a list of values is an axis"),
        ),
    ),
    "merge": Help(words="NAME", examples=(("NAME", "when all of `sweep shard=I/N run_name=NAME` have ended"),)),
    "eval": _of_cells(
        *OF_SUITES, *OF_RUNS,
        groups=("suite", "ablation"), specs=(*_CELL, "sweep", "suite"), words="+suite=NAME",
        examples=(
            ("+suite=nano limit=20 engine.best=true precision=int8", "against the unmodified model"),
            ("+ablation=accuracy_deferral", "a study: deferral beside skipping"),
        ),
    ),
    "serve": _of_cells(
        *keys_of("serve", ServerSettings), examples=(("model=nano", "an OpenAI-compatible API of the nano model"),)
    ),
    "chat": _of_cells(*keys_of("chat", ChatSettings), examples=(("model=nano", "with the nano model"),)),
    "trace": _of_cells(
        *OF_RUNS[:1],
        examples=(("model.layers=4 engine.roles=split engine.best=true", "what overlaps in one step"),),
    ),
    "record": _of_cells(_OUTPUT, examples=(("model.layers=4 output=profile.npz", "which experts are chosen"),)),
    "export": _of_cells(
        _OUTPUT, specs=(), examples=(("model.layers=4 precision=q4_0 output=slice.gguf", "a file for llama.cpp"),)
    ),
    "report": Help(
        words="RUN [FORMAT ...]",
        keys=(_WITH, *keys_of("", FigureStyle)),
        examples=(
            ("latest", "tables, figures and page again"),
            ("latest csv", "the CSV alone, on stdout as well"),
            ("slice with=nano", "speeds of one run beside the answers of another, by arm"),
            ("latest kit width=3.3 font='DejaVu Serif'", "a folder for a paper of two columns"),
        ),
    ),
    "compare": Help(
        words="A B", keys=_COMPARED, examples=(("A B", "two runs, by folder or name"), ("A latest", "the last one"))
    ),
    "advise": Help(
        keys=tuple(keys_of("", AdviceArguments)),
        examples=(
            (
                'cpu="EPYC 9355" sockets=2 ram="24x32 DDR5-6400" gpu="RTX 4090" model=deepseek_v3',
                "settings, speed and upgrades",
            ),
        ),
    ),
    "validate": Help(
        keys=tuple(keys_of("", ValidationArguments)), examples=(("", "the simulator against published numbers"),)
    ),
    "list": Help(words="[KIND]", examples=(("models", "their names and titles"), ("ablations", "and their verbs"))),
    "completion": Help(words="bash|zsh|fish", examples=(("bash", "a script: source it, or keep it"),)),
}  # fmt: skip


def help_text(verb: str, summary: str) -> str:
    """The page of a verb."""
    told = HELP.get(verb, Help())
    return "\n".join([f"ktbench {verb}: {summary}\n", *_usage(verb, told), *_groups(told.groups), *_keys(told)])


def _usage(verb: str, told: Help) -> Iterator[str]:
    keys = "[KEY=VALUE ...]" if told.keys else ""
    yield f"usage: {' '.join(filter(None, ('ktbench', verb, told.words, keys)))}"
    if told.groups:
        yield "flags of Hydra: --cfg job|hydra|all [--resolve] [--package KEY], --config-dir FOLDER (groups of yours),"
        yield "  --info [all|config|defaults|defaults-tree|searchpath|plugins], --multirun (run, sweep, eval)"
    if told.examples:
        yield "\nexamples:"
        lines = [(f"ktbench {verb} {words}".rstrip(), about) for words, about in told.examples]
        yield from _columns(lines)


def _groups(groups: Sequence[str]) -> Iterator[str]:
    if not groups:
        return
    yield "\nby name (`ktbench list` says what each is):"
    chosen = default_options()
    for group in groups:
        default = chosen.get(group)
        sign = "" if default else "+"
        names = ", ".join([*option_files(group), *_BESIDE.get(group, ())])
        yield f"  {sign}{group}={default or 'NAME'}"
        yield fill(names, _WIDTH, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False)


def default_options() -> dict[str, str]:
    """The option of each group that has one without being named."""
    content = yaml.safe_load((data_folder("conf") / "config.yaml").read_text(encoding="utf-8"))
    pairs = (pair for one in content["defaults"] if isinstance(one, dict) for pair in one.items())
    return {str(group): str(option) for group, option in pairs if option is not None}


def _keys(told: Help) -> Iterator[str]:
    if told.keys:
        yield "\nkeys, with defaults:"
        keys = [*told.all_keys()]
        for number, line in enumerate(_columns([_line(key) for key in keys])):
            if number and _root(keys[number]) != _root(keys[number - 1]):
                yield ""
            yield line
    if "machine" in told.groups:
        yield "\nmachine.KEY changes a constant of a described machine, model.config.KEY a fact of a model."


def _root(key: Key) -> str:
    """What its keys have in common: `engine`, `workload.stream`; of those without a dot nothing."""
    return key.name.rpartition(".")[0]


def _line(key: Key) -> tuple[str, str]:
    """The key with its default, then its values and its meaning."""
    listed = {"system": "systems", "precision": "precisions", "device_precision": "precisions"}.get(key.name)
    allowed = f"NAME (ktbench list {listed})" if listed else key.allowed
    return f"{key.name}={key.default}".removesuffix("="), f"{allowed:<30} {key.about}".rstrip()


def _columns(lines: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(first) for first, _ in lines)
    for first, second in lines:
        yield f"  {first:<{width}}  {second}".rstrip()
