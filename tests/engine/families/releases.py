"""Every family through checkpoints as released: Transformers saves a folder, our loader reads it, and both compute.

`python -m tests.engine.families.releases [NAME…]` prints families × layouts and ends with 1 where any differs;
`--llama.cpp FOLDER` adds GGUF files that the converter in llama.cpp's sources makes, `--write` keeps the table in the
docs. Tensors in a folder have the names of the release, experts and all: Transformers turns its own back when it saves.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.inject.registry import OPERATORS
from ktbench.engine.stored.formats import stored_formats
from ktbench.spec.inject import InjectSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.shape import moe_shape
from tests.engine.engines import FUSED, LEAN, cell, engine_for, logits, plain, relative, stirred
from tests.engine.families.converter import Converter, UnconvertedError
from tests.engine.families.plain import build
from tests.engine.families.zoo import FAMILIES, tiny
from tests.engine.prompts import together
from tests.engine.tiny import decode, prefill

Layout = Literal["bf16", "fp8", "gguf"]
LAYOUTS: tuple[Layout, ...] = ("bf16", "fp8")  # gguf needs the converter
CELLS = ("base", "fused", "+l")
# Of a cell on native weights against Transformers on the same numbers in bf16, which rounds at 2^-9 in four layers.
TOLERANCE = 0.05
WORK = (prefill(batch=2), decode(batch=3))
# What releases in FP8 quantise: projections of attention and of experts, by any name, one by one or stacked.
_QUANTISED = re.compile(
    r".*\.((self_attn|attn|attention)\.([qkvo]_proj|w[qkvo]\w*)\.weight|experts\.(.*\.weight|gate_up_proj|down_proj))"
    r"|.*\.(input_linear|output_linear)\.weight"
)
_SCALE = {"fmt": "e4m3", "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_E4M3_MAX, _SIDE = 448.0, 128
# Where all releases differ from the default of Transformers, and llama.cpp knows nothing else.
_AS_RELEASED: Mapping[str, dict[str, Any]] = {"qwen3_moe": {"norm_topk_prob": True}}
# A GGUF file of an architecture that is not read here.
_UNREAD = re.compile(r"GGUF of architecture [\w.-]+")
_SHOWN = 100  # characters of a reason
FILE = Path(__file__).parents[3] / "docs" / "families_released.md"
_HEAD = """\
# Families as released

Written by `nox -s families -- --write`
({packages}).

Each tiny model of [families.md](families.md), with random weights, and with norms and biases that differ from their
initial values, is saved by Transformers under the names of its release: in bf16, and in FP8 (e4m3, squares of 128 ×
128, for attention and routed experts); llama.cpp's converter makes a GGUF file in bf16 of it, from the values of
releases where Transformers leaves them out of the configuration (`_RELEASED` of tests/engine/families/converter.py) and
without a tokenizer. What the engine loads from there is compared with plain Transformers on the same numbers, in
prefill and in decode on a cache.

A cell holds relative errors of the logits: of base, of fused experts, and of these with `+l`. *same* means every bit; a
feature may differ by {tolerance}, as it rounds once where Transformers rounds after every operation. A dash says why
there is no such checkpoint.

"""


def released(name: str, folder: Path, layout: Layout, converter: Converter | None) -> tuple[ModelSpec, PreTrainedModel]:
    """A tiny model of a family as our loader sees its checkpoint, and Transformers' on the numbers that it holds."""
    truth = folder / "plain"
    model = tiny(name)
    model = replace(model, config=model.config | _AS_RELEASED.get(name, {}))
    stir(build(model)).save_pretrained(truth)
    path = _written(truth, folder, layout, converter)
    config = inspect_checkpoint(path)
    shape, stored = moe_shape(config), stored_formats(str(path))
    kept = stored.layers if layout == "fp8" else ()
    model = ModelSpec(
        name=name, config=config, full_layers=shape.layers, full_vocab=shape.vocab, path=str(path), stored=kept
    )
    return model, plain(replace(model, config=inspect_checkpoint(truth), path=str(truth)))


def _written(truth: Path, folder: Path, layout: Layout, converter: Converter | None) -> Path:
    """The checkpoint of a layout, beside a plain folder in bf16."""
    if layout == "bf16":
        return truth
    if layout == "fp8":
        (there := folder / layout).mkdir()
        _quantise(truth, there)
        return there
    assert converter is not None
    converter.convert(truth, file := folder / "model.gguf")
    return file


@torch.no_grad()
def stir(network: PreTrainedModel) -> PreTrainedModel:
    """Norms, biases and buffers that matter, in numbers that bf16 does not hold; experts of a token that differ."""
    draw = torch.Generator().manual_seed(7)
    for name, buffer in stirred(network).state_dict(keep_vars=True).items():
        if not buffer.is_floating_point():
            ids = torch.rand(buffer.shape[0], network.config.n_routed_experts, generator=draw).argsort(dim=1)
            buffer.copy_(ids[:, : buffer.shape[1]])
        elif not isinstance(buffer, torch.nn.Parameter) and not name.endswith("inv_freq"):
            buffer.add_(0.05 * torch.randn(buffer.shape, generator=draw))
    return network


def _quantise(plain_folder: Path, folder: Path) -> None:
    """Writes a folder in FP8, and into the plain one the numbers that it stands for."""
    stored, numbers = dict[str, Tensor](), load_file(plain_folder / "model.safetensors")
    for name, tensor in numbers.items():
        if tensor.dim() < 2 or not _QUANTISED.fullmatch(name):
            stored[name] = tensor
            continue
        weights, scale, truth = fp8(tensor.float())
        stored |= {name: weights, f"{name}_scale_inv": scale}
        numbers[name] = truth.bfloat16()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(numbers, plain_folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain_folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": _SCALE}))


def fp8(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales of squares, and what they stand for, of a matrix or a stack of them [..., N, K]."""
    *stack, rows, columns = weight.shape
    high, wide = -(-rows // _SIDE), -(-columns // _SIDE)
    padded = weight.new_zeros(*stack, high * _SIDE, wide * _SIDE)
    padded[..., :rows, :columns] = weight.abs()
    scale = padded.view(*stack, high, _SIDE, wide, _SIDE).amax(dim=(-3, -1)) / _E4M3_MAX
    whole = scale.repeat_interleave(_SIDE, -2)[..., :rows, :].repeat_interleave(_SIDE, -1)[..., :columns]
    codes = (weight / whole).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return codes, scale, codes.float() * whole


def differences(name: str, folder: Path, layout: Layout, converter: Converter | None = None) -> dict[str, float]:
    """Relative errors of the logits by kind of cell: of base, 0 only where every bit is the same.

    Raises UnconvertedError for a family that the converter makes no GGUF of, ValueError as the loader does.
    """
    model, network = released(name, folder, layout, converter)
    precision = "fp8" if layout == "fp8" else "bf16"
    fused = {**FUSED, "precision": precision}
    cells: Mapping[str, dict[str, Any]] = {
        "base": {},
        "fused": fused,
        "+l": {**fused, "packed_dense": True, "device_precision": precision},
    }
    rules = _fitting(network)

    def spec(work: WorkloadSpec, kind: str) -> RunSpec:
        return replace(cell(model, work, **cells[kind]), inject=rules)

    system = engine_for(*(spec(WORK[0], kind) for kind in reversed(CELLS)))
    found = dict.fromkeys(CELLS, 0.0)
    for work in WORK:
        truth = together(network, work)
        for kind in CELLS:
            seen = logits(system, spec(work, kind))
            same = all(map(torch.equal, seen, truth))
            found[kind] = max(found[kind], 0.0 if same else relative(seen, truth))
    return found


def _fitting(network: PreTrainedModel) -> InjectSpec:
    """The lean rules, but for modules that they do not fit: some linear layers have an output for a head."""
    fits = {name: OPERATORS[name].fits for name in ("linear", "rms_norm")}
    rules = []
    for rule in LEAN.rules:
        matched = [(name, one) for name, one in network.named_modules() if rule.matches(name, type(one).__name__)]
        others = [re.escape(name) for name, one in matched if rule.operator in fits and fits[rule.operator](one)]
        rules.append(replace(rule, module=f"(?!({'|'.join(others)})$){rule.module}") if others else rule)
    return replace(LEAN, rules=tuple(rules))


def main(words: Sequence[str]) -> int:
    """Print a row for each family as it is done."""
    parser = ArgumentParser(prog="python -m tests.engine.families.releases")
    parser.add_argument("names", nargs="*", metavar="NAME", help="families, all where none is named")
    parser.add_argument("--llama.cpp", dest="sources", type=Path, help="its sources, for GGUF")
    parser.add_argument("--write", action="store_true", help=f"keep the table in {FILE.relative_to(FILE.parents[1])}")
    asked = parser.parse_args(words)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    converter = None if asked.sources is None else Converter(asked.sources)
    layouts: tuple[Layout, ...] = LAYOUTS if converter is None else (*LAYOUTS, "gguf")
    rows, wrong = list[Sequence[str]](), 0
    for name in asked.names or FAMILIES:
        results = [result(name, layout, converter) for layout in layouts]
        wrong += any(failed for _, failed in results)
        rows.append((f"`{name}`", *(text for text, _ in results)))
        print(
            f"{name:20s}  "
            + "  ".join(f"{layout}: {text:24s}" for layout, (text, _) in zip(layouts, results, strict=True)),
            flush=True,
        )
    if asked.write:
        FILE.write_text(page(layouts, rows), encoding="utf-8")
    return int(wrong > 0)


def result(name: str, layout: Layout, converter: Converter | None) -> tuple[str, bool]:
    """Errors of the cells in words, or why there are none, and whether that is a fault."""
    with TemporaryDirectory() as folder:
        try:
            found = differences(name, Path(folder), layout, converter)
        except UnconvertedError as error:
            return f"– ({str(error)[:_SHOWN]})", False
        except Exception as error:  # a family that does not load is a row like the others
            words = " ".join(str(error).split()).replace(folder, "")
            if layout == "gguf" and (unread := _UNREAD.search(words)):
                return f"– (refused: {unread[0]})", False
            return f"{type(error).__name__}: {words[:_SHOWN]}", True
    shown = ("same" if found[kind] == 0 else f"{found[kind]:.3f}" for kind in CELLS)
    is_wrong = max(found.values()) > TOLERANCE or (layout in LAYOUTS and found["base"] > 0)
    return " / ".join(shown), is_wrong


def page(layouts: Sequence[Layout], rows: Sequence[Sequence[str]]) -> str:
    """The table as a file of the docs."""
    packages = f"Transformers {transformers.__version__}, PyTorch {torch.__version__}, {platform.machine()}"
    head = ("family", *(layout.replace("fp8", "FP8").replace("gguf", "GGUF") for layout in layouts))
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return _HEAD.format(packages=packages, tolerance=TOLERANCE) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
