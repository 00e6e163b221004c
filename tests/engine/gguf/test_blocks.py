"""Quantised weights of a GGUF file in the engine: packed as they are, and right against plain Transformers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.dense import DenseOperators
from ktbench.engine.forms import LinearRows
from ktbench.engine.gguf.export import export_gguf
from ktbench.engine.gguf.header import aligned, read_header
from ktbench.engine.gguf.reading import numbers
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.weight_plan import Packing
from ktbench.run.check import check, check_the_check
from ktbench.spec.record import Outcome, collect, dishonest
from ktbench.spec.run_spec import ModelSpec, RunSpec
from tests.drawing import covering
from tests.engine.engines import FUSED, cell, engine_for, logits, needs_vector, relative
from tests.engine.families.plain import experts_of
from tests.engine.families.zoo import ALL
from tests.engine.gguf.rounding import MATRICES, PRECISIONS, UNQUANTISED, blocks_of, quantise, quantised, stored_experts
from tests.engine.gguf.tinies import FAMILIES, tiny_of
from tests.engine.gguf.written import Written
from tests.engine.inject.test_linear_precisions import VALUES, mixed
from tests.engine.prompts import together
from tests.engine.test_packed_dense import packed_layers, stored
from tests.engine.tiny import decode, load, prefill, run, spec

pytestmark = needs_vector()

KINDS = list(PRECISIONS)
# Of logits: activations are rounded to 8 bits in blocks before every product, sums to bf16 after it.
TOLERANCE = 0.1


def packed(model: ModelSpec, precision: Any) -> HybridEngine:
    return load(model, keep_original=False, packing=Packing(precision=precision))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "gpt_oss_20b"])
def test_experts_are_those_of_the_file_bit_for_bit(name: str, kind: Any, exported: Any) -> None:
    model, truth = exported(name, kind)
    operators = packed(model, PRECISIONS[kind])._components.operators
    for operator, module in zip(operators, experts_of(truth), strict=True):
        for i in (0, 5):
            seen, expected = operator.fused.matrices(i), stored_experts(module, i)
            for field in MATRICES:
                assert torch.equal(getattr(seen, field), quantised(getattr(expected, field), kind))
            for one, other in zip(seen.biases or (), expected.biases or (), strict=True):
                assert torch.equal(one, other.float())


OTHERS = [(kind, name) for kind, name in product(KINDS, ("int8", "bf16", "q8_0", "q4_0")) if name != PRECISIONS[kind]]


@pytest.mark.parametrize(("kind", "precision"), covering(OTHERS))
def test_experts_of_another_precision_are_rounded_to_bf16_first(kind: Any, precision: Any, exported: Any) -> None:
    """As those of a folder that holds what the blocks stand for."""
    model, truth = exported("mixtral_8x7b", kind)
    quantise(truth, kind)
    folder = Path(str(model.path)).with_name("rounded")
    truth.save_pretrained(folder)
    systems = [packed(one, precision) for one in (model, replace(model, path=str(folder)))]
    for operator, other in zip(*(system._components.operators for system in systems), strict=True):
        for field in MATRICES:
            assert torch.equal(*(getattr(one.fused.matrices(2), field) for one in (operator, other)))


MIXED = {"gate": "Q8_0", "up": "Q4_0", "down": "MXFP4"}
MORE_BITS = {"gate": "Q4_0", "up": "Q4_0", "down": "Q8_0"}


def retyped_experts(exported: Any, folder: Path, kinds: Mapping[str, Any]) -> tuple[ModelSpec, PreTrainedModel]:
    """A file with matrices of several types, and the network of the numbers that these stand for."""
    model, truth = exported("mixtral_8x7b", "BF16")
    for module in experts_of(truth):
        for expert in (stored_experts(module, i) for i in range(8)):
            for field, kind in kinds.items():
                getattr(expert, field).copy_(quantised(getattr(expert, field), kind))
    return replace(model, path=str(retyped(Path(str(model.path)), folder / "mixed.gguf", kinds))), truth


@pytest.mark.parametrize("precision", ["q4_0", "q8_0"])
def test_experts_that_keep_down_in_more_bits_are_those_of_the_file(
    precision: Any, exported: Any, tmp_path: Path
) -> None:
    """Whichever of the two formats is asked for."""
    model, truth = retyped_experts(exported, tmp_path, MORE_BITS)
    for operator, module in zip(packed(model, precision)._components.operators, experts_of(truth), strict=True):
        seen, expected = operator.fused.matrices(3), stored_experts(module, 3)
        for field, kind in MORE_BITS.items():
            assert torch.equal(getattr(seen, field).bfloat16(), getattr(expected, field)), kind


@pytest.mark.parametrize("precision", ["q8_0", "mxfp4"])
def test_gate_and_up_of_two_types_are_refused_in_either(precision: Any, exported: Any, tmp_path: Path) -> None:
    model, _ = retyped_experts(exported, tmp_path, MIXED)
    with pytest.raises(ValueError, match=r"ffn_gate_exps\.weight is q8_0, .*ffn_up_exps\.weight is q4_0"):
        packed(model, precision)


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_experts_of_several_types_are_rounded_to_bf16_first(precision: Any, exported: Any, tmp_path: Path) -> None:
    """In precisions that none of them is stored in."""
    mixed, truth = retyped_experts(exported, tmp_path, MIXED)
    truth.save_pretrained(tmp_path / "rounded")
    systems = [packed(one, precision) for one in (mixed, replace(mixed, path=str(tmp_path / "rounded")))]
    for operator, other in zip(*(system._components.operators for system in systems), strict=True):
        for field in MATRICES:
            assert torch.equal(*(getattr(one.fused.matrices(2), field) for one in (operator, other)))


def retyped(file: Path, new: Path, kinds: Mapping[str, Any]) -> Path:
    """The file with its experts' matrices in other types, quantised by the gguf package."""
    written, header, data = [], read_header(file), file.read_bytes()
    for info in header.tensors.values():
        kind = next((kind for field, kind in kinds.items() if f"ffn_{field}_exps" in info.name), None)
        held = data[info.offset : info.offset + info.nbytes]
        if kind is not None:
            rows = np.frombuffer(held, np.uint8).reshape(-1, info.row_bytes)
            held = blocks_of(numbers(rows, info.kind).float(), kind).tobytes()
        written.append((info.name, kind or info.kind, info.shape, held))
    whole = Written(metadata=header.metadata, tensors=[one[:3] for one in written]).head()
    for *_, held in written:
        whole = whole.ljust(aligned(len(whole)), b"\0") + held
    new.write_bytes(whole)
    return new


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mixtral_8x7b", "deepseek_v3", "qwen2_57b_a14b"])
def test_linear_layers_are_those_of_the_file_bit_for_bit(name: str, kind: Any, exported: Any) -> None:
    model, truth = exported(name, kind)
    system = engine_for(lean_cell(model, kind))
    layers = dict(packed_layers(system))
    assert {"lm_head", "model.layers.1.self_attn.o_proj"} <= set(layers)
    for place, layer in layers.items():
        weight = truth.get_parameter(f"{place}.weight")
        is_blocks = not f"{place}.weight".endswith(UNQUANTISED)
        assert layer.projection.matrix.packed.precision == (PRECISIONS[kind] if is_blocks else "bf16")
        assert torch.equal(stored(layer), quantised(weight, kind) if is_blocks else weight.float()), place


@pytest.mark.parametrize(("kind", "precision"), [("Q8_0", "int8"), ("Q4_0", "q8_0"), ("BF16", "q4_0")])
def test_linear_layers_of_another_precision_are_rounded_to_bf16_first(kind: Any, precision: Any, exported: Any) -> None:
    model, truth = exported("mixtral_8x7b", kind)
    quantise(truth, kind)
    folder = Path(str(model.path)).with_name("rounded")
    truth.save_pretrained(folder)
    systems = [
        engine_for(cell(one, decode(), **FUSED, packed_dense=True, device_precision=precision))
        for one in (model, replace(model, path=str(folder)))
    ]
    for (place, layer), (_, other) in zip(*map(packed_layers, systems), strict=True):
        assert layer.projection.matrix.packed.precision == precision
        assert torch.equal(stored(layer), stored(other)), place


@pytest.mark.parametrize("named", ["int8", "q8_0", "q4_0"])
def test_linear_layers_that_a_rule_gives_another_precision_are_rounded_to_bf16_first(named: Any, exported: Any) -> None:
    """Beside others that are those of the file; what the file has in that precision is taken as it is."""
    model, truth = exported("mixtral_8x7b", "Q4_0")
    quantise(truth, "Q4_0")
    folder = Path(str(model.path)).with_name("rounded")
    truth.save_pretrained(folder)
    alone = cell(replace(model, path=str(folder)), decode(), **FUSED, packed_dense=True, device_precision=named)
    asked = replace(lean_cell(model, "Q4_0"), inject=mixed(VALUES, named))
    expected = {(True, place): layer for place, layer in packed_layers(engine_for(alone))}
    expected |= {(False, place): layer for place, layer in packed_layers(engine_for(lean_cell(model, "Q4_0")))}
    for place, layer in packed_layers(engine_for(asked)):
        is_named = place.endswith("v_proj") and named != "q4_0"
        assert layer.projection.matrix.packed.precision == (named if is_named else "q4_0")
        assert torch.equal(stored(layer), stored(expected[is_named, place])), place


@torch.no_grad()
def test_layers_that_share_a_matrix_but_no_type_stay_as_they_are() -> None:
    """As llama.cpp quantises the attention of Mixtral: keys and values to more bits than queries."""
    query, key = (torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16) for _ in range(2))
    stored = {query: LinearRows(lambda: blocks_of(query.weight, "Q4_0"), "q4_0")}
    host = DenseOperators(1, "q4_0", CallRecorder(), False, stored.get)
    together, alone = host.matrix([query, key]).packed, host.matrix([query]).packed
    assert (together.precision, alone.precision) == ("bf16", "q4_0")
    assert torch.equal(torch.from_numpy(together.read()), torch.cat([query.weight, key.weight]).float())
    assert torch.equal(torch.from_numpy(alone.read()), quantised(query.weight, "Q4_0"))


def lean_cell(model: ModelSpec, kind: Any, **options: Any) -> RunSpec:
    precision = PRECISIONS[kind]
    workload = options.pop("workload", decode(batch=2))
    return cell(model, workload, **FUSED, packed_dense=True, precision=precision, device_precision=precision, **options)


@pytest.mark.parametrize(("name", "kind"), [*((name, "Q4_0") for name in FAMILIES), ("deepseek_v3", "Q8_0")])
def test_logits_are_those_of_transformers_on_the_same_numbers(name: str, kind: Any, exported: Any) -> None:
    """Every token goes to all experts, as a router may choose others where it sees what is rounded otherwise."""
    model, original = exported(name, kind, **ALL)
    truth = copy.deepcopy(original)
    quantise(truth, kind)
    system = engine_for(lean_cell(model, kind))
    for workload in (decode(batch=2), prefill(batch=2)):
        seen, expected = logits(system, lean_cell(model, kind, workload=workload)), together(truth, workload)
        assert relative(seen, expected) < TOLERANCE
        if kind == "Q4_0":  # numbers that are not rounded would be found out
            assert relative(together(original, workload), expected) > 2 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_on_blocks_passes_the_check_with_evidence(kind: Any, exported: Any) -> None:
    model, _ = exported("qwen3_30b_a3b", kind)
    system = engine_for(lean_cell(model, kind))
    for workload in (decode(batch=2), prefill()):
        requested = lean_cell(model, kind, workload=workload)
        system.configure(requested)
        before = dict(system.counters())
        run(system, workload.steps)
        moved = {name: count - before[name] for name, count in system.counters().items()}
        assert dishonest(collect(requested.engine.features, moved)) == ""
        seen = system.observe()
        assert check(seen, system.reference, requested.tolerance).outcome is Outcome.OK
        assert check_the_check(seen, system.reference, requested.tolerance) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_file_of_a_slice_gives_the_logits_of_the_slice(kind: Any, tmp_path: Path) -> None:
    """The export and the engine round the same numbers alike."""
    model = tiny_of("qwen3_30b_a3b")
    export_gguf(model, tmp_path / "model.gguf", experts=kind, dense="BF16", say=lambda _line: None)
    seen = []
    for one in (model, replace(model, path=str(tmp_path / "model.gguf"))):
        system = packed(one, PRECISIONS[kind])
        system.configure(replace(spec(one, decode(), **FUSED), precision=PRECISIONS[kind]))
        seen.append(run(system, 3))
    assert all(map(torch.equal, *seen))


def test_base_takes_turns_with_packed_blocks(exported: Any) -> None:
    model, truth = exported("mixtral_8x7b", "Q8_0")
    quantise(truth, "Q8_0")
    base, fused = cell(model, decode()), cell(model, decode(), **FUSED, precision="q8_0")
    system = load(model, cores=1, packing=Packing(precision="q8_0"))
    first = logits(system, fused)
    assert all(map(torch.equal, logits(system, base), together(truth, decode())))
    assert all(map(torch.equal, logits(system, fused), first))
