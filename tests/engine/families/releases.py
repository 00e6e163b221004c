"""Every family through a folder as released: Transformers saves it, our loader reads it, and both compute.

`python -m tests.engine.families.releases` prints families × layouts; it ends with 1 where any differs. Names in the
folder are those of the release, experts and all, because Transformers turns its own back when it saves.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
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
from tests.engine.families.plain import build
from tests.engine.families.zoo import FAMILIES, tiny
from tests.engine.prompts import together
from tests.engine.tiny import decode, prefill

Layout = Literal["bf16", "fp8"]
LAYOUTS: tuple[Layout, ...] = ("bf16", "fp8")
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


def released(name: str, folder: Path, layout: Layout) -> tuple[ModelSpec, PreTrainedModel]:
    """A tiny model of a family as our loader sees its folder, and Transformers' own on the numbers that it holds."""
    there, truth = folder / layout, folder / "plain"
    stir(build(tiny(name))).save_pretrained(truth)
    if layout == "fp8":
        there.mkdir()
        _quantise(truth, there)
    path = str(truth if layout == "bf16" else there)
    config = inspect_checkpoint(path)
    shape, stored = moe_shape(config), stored_formats(path)
    kept = stored.layers if layout == "fp8" else ()
    model = ModelSpec(
        name=name, config=config, full_layers=shape.layers, full_vocab=shape.vocab, path=path, stored=kept
    )
    return model, plain(replace(model, path=str(truth)))


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


def differences(name: str, folder: Path, layout: Layout) -> dict[str, float]:
    """Relative errors of the logits by kind of cell: of base, 0 only where every bit is the same."""
    model, network = released(name, folder, layout)
    fused = {**FUSED, "precision": layout}
    cells: dict[str, dict[str, Any]] = {
        "base": {},
        "fused": fused,
        "lean": {**fused, "packed_dense": True, "device_precision": layout},
    }
    rules = _fitting(network)

    def spec(work: WorkloadSpec, kind: str) -> RunSpec:
        return replace(cell(model, work, **cells[kind]), inject=rules)

    system = engine_for(*(spec(WORK[0], kind) for kind in reversed(cells)))
    found = dict.fromkeys(cells, 0.0)
    for work in WORK:
        truth = together(network, work)
        for kind in cells:
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


def main(names: Sequence[str]) -> int:
    """Prints a row for each family as it is done."""
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    print(f"{'family':22s}" + "".join(f"{layout:>10s}: base   fused    +l  " for layout in LAYOUTS), flush=True)
    wrong = 0
    for name in names or FAMILIES:
        row = f"{name:22s}"
        for layout in LAYOUTS:
            with TemporaryDirectory() as folder:
                try:
                    found = differences(name, Path(folder), layout)
                except Exception as error:  # a family that does not load is a row like the others
                    row += f" {type(error).__name__}: {' '.join(str(error).split())[:160]}"
                    wrong += 1
                    continue
            base = found.pop("base")
            wrong += base > 0 or max(found.values()) > TOLERANCE
            row += f"{format(base, '.4f') if base else 'same':>16s}" + "".join(f" {one:7.4f}" for one in found.values())
        print(row, flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
