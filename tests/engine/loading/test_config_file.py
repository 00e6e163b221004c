"""Models from a `config.json` alone: real ones are planned, small ones run, and what is none is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet

from ktbench.engine.loading.config_file import config_in, released_config
from ktbench.run.request import one_cell_request, read_request
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.shape import moe_shape, text_config
from ktbench.spec.wire import spec_id
from tests.drawing import covering
from tests.engine.tiny import load, run, shrunk, spec

SHARED = Path(__file__).parents[4] / "shared" / "data" / "model_configs"
RELEASED = sorted(SHARED.glob("*_config.json"))
# Their experts are called otherwise (docs/families.md); described machines may run them all the same.
OTHERWISE = [file for file in RELEASED if "Llama-4" in file.name]
FAMILIES = ["deepseek_v3", "gpt_oss_20b", "minimax_m2", "mixtral_8x7b", "qwen2_57b_a14b", "qwen3_30b_a3b"]
OTHERS = [*SHARED.glob("*_native.json"), SHARED / "model_facts.json"]
with_shared_data = pytest.mark.skipif(not RELEASED, reason="no shared data folder next to this checkout")


def one_of_each_family(files: list[Path]) -> list[ParameterSet]:
    return covering([(file,) for file in files], lambda file: (json.loads(file.read_text())["model_type"],))


def asked(file: Path, *words: str) -> RunSpec:
    return one_cell_request("run", [f"model.config={file}", *words]).parts[0].spec


@with_shared_data
@pytest.mark.parametrize("file", one_of_each_family(RELEASED), ids=lambda file: file.stem)
def test_released_configurations_are_planned_in_their_real_shapes(file: Path) -> None:
    whole = moe_shape(json.loads(file.read_text()))
    where = ["machine=paper_a100"] if file in OTHERWISE else []
    model = asked(file, *where).model
    assert (model.shape, model.full_layers, model.full_vocab) == (whole, whole.layers, whole.vocab)
    assert model.path is None
    assert model.name.startswith(file.name.removesuffix("_config.json"))


@with_shared_data
@pytest.mark.parametrize(
    "file", one_of_each_family([file for file in RELEASED if file not in OTHERWISE]), ids=lambda file: file.stem
)
def test_slices_and_layers_of_released_configurations_are_planned(file: Path) -> None:
    whole = moe_shape(json.loads(file.read_text()))
    sliced = asked(file, f"model.layers={whole.dense_layers + 1}").model
    assert (sliced.shape.moe_layers, sliced.is_slice) == (1, True)
    assert sliced.shape.vocab < whole.vocab
    assert asked(file, "workload=layer", "model.experts=16").model.shape.experts == min(16, whole.experts)


@with_shared_data
def test_experts_that_the_engine_cannot_call_are_refused_where_they_are_measured() -> None:
    for file in OTHERWISE:
        with pytest.raises(RequestError, match=r"the engine does not run a llama4"):
            asked(file)


@with_shared_data
@pytest.mark.parametrize("file", OTHERS, ids=lambda file: file.stem)
def test_other_files_are_refused(file: Path) -> None:
    with pytest.raises(RequestError, match="is not a Hugging Face configuration|must hold an object"):
        asked(file)


def written(file: Path, config: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(config))
    return file


def test_infinite_numbers_are_read_as_transformers_writes_them(tmp_path: Path) -> None:
    """Nemotron-3-Super has `Infinity` as released, Granite-4 what Transformers makes of it."""
    facts = shrunk("qwen3_30b_a3b")
    read = [
        config_in(str(written(tmp_path / f"{i}.json", facts | {"time_step_limit": [0.0, limit]})))
        for i, limit in enumerate((float("inf"), {"__float__": "Infinity"}))
    ]
    assert read[0] == read[1]
    assert json.loads(json.dumps(read[0], allow_nan=False)) == read[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_small_configuration_runs(name: str, tmp_path: Path) -> None:
    """With the weights of the same configuration in `conf/model`: they follow from it and from the seed."""
    layers = "model.layers=2" if shrunk(name).get("first_k_dense_replace") else "model.layers=1"
    cell = asked(written(tmp_path / "config.json", shrunk(name)), layers, "model.vocab=64", "workload.prompt=5")
    depth = {"num_hidden_layers": cell.model.shape.layers, "vocab_size": 64}
    kinds = {key: value[: depth["num_hidden_layers"]] for key, value in shrunk(name).items() if isinstance(value, list)}
    same = ModelSpec(name=name, config=shrunk(name) | depth | kinds, full_layers=3, full_vocab=256)
    logits = []
    for model in (cell.model, same):
        system = load(model)
        system.configure(spec(model, cell.workload))
        logits.append(run(system, 2))
    assert all(map(torch.equal, *logits))


def test_it_is_named_by_what_it_is_and_not_by_where_it_lies(tmp_path: Path) -> None:
    one = written(tmp_path / "a" / "MyMoE" / "config.json", shrunk("qwen3_30b_a3b"))
    two = shutil.copytree(one.parent, tmp_path / "b" / "MyMoE") / "config.json"
    first, second = asked(one), asked(two)
    assert first.model.name == second.model.name
    assert first.model.name.startswith("MyMoE@")
    assert spec_id(first) == spec_id(second)
    assert str(tmp_path) not in repr(first)
    wider = asked(written(tmp_path / "c" / "MyMoE" / "config.json", shrunk("qwen3_30b_a3b") | {"num_experts": 16}))
    assert wider.model.name.startswith("MyMoE@")
    assert wider.model.name != first.model.name


@pytest.mark.parametrize("own", ["lab/Ours-8x1B", "/home/someone/models/Ours-8x1B/", "Ours-8x1B"])
def test_its_own_name_comes_first(own: str, tmp_path: Path) -> None:
    config = shrunk("qwen3_30b_a3b")
    found = asked(written(tmp_path / "config.json", config | {"_name_or_path": own})).model
    assert found.name.startswith("Ours-8x1B@")
    assert found.config == asked(written(tmp_path / "config.json", config)).model.config


@pytest.mark.parametrize("nested", [False, True])
def test_kimi_is_deepseek_v3_without_its_own_code(nested: bool, tmp_path: Path) -> None:
    plain = shrunk("deepseek_v3")
    kimi = plain | {"model_type": "kimi_k2", "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}
    kimi = {"model_type": "kimi_k25", "text_config": kimi} if nested else kimi
    assert config_in(str(written(tmp_path / "config.json", kimi))) == plain


def test_special_tokens_need_not_be_in_the_vocabulary(tmp_path: Path) -> None:
    tokens = {"pad_token_id": 255, "eos_token_id": [254], "bos_token_id": 253}
    load(asked(written(tmp_path / "config.json", shrunk("gpt_oss_20b") | tokens), "model.vocab=64").model)


def test_the_format_of_the_weights_is_in_the_released_configuration_alone(tmp_path: Path) -> None:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    file = str(written(tmp_path / "config.json", shrunk("deepseek_v3") | {"quantization_config": quantised}))
    assert released_config(file)["quantization_config"] == quantised
    assert config_in(file) == config_in(str(written(tmp_path / "b.json", shrunk("deepseek_v3"))))


ANNOUNCED: list[tuple[Any, tuple[str, str]]] = [
    (None, ("bf16", "bf16")),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", "fp8")),
    ({"quant_method": "compressed-tensors", "format": "float-quantized"}, ("fp8", "fp8")),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, ("int4_bf16", "bf16")),
    ({"quant_method": "mxfp4"}, ("mxfp4", "bf16")),
    ({"quant_method": "of tomorrow"}, ("bf16", "bf16")),
]


@pytest.mark.parametrize(("quantised", "formats"), ANNOUNCED, ids=str)
def test_native_weights_have_the_format_that_is_announced(
    quantised: Any, formats: tuple[str, str], tmp_path: Path
) -> None:
    file = written(tmp_path / "config.json", shrunk("qwen3_30b_a3b") | {"quantization_config": quantised})
    packed = asked(file, "engine.avx512=true", "engine.packed_dense=true")
    assert (packed.precision, packed.device_precision) == formats
    assert asked(file).precision == "bf16"
    assert asked(file, "engine.avx512=true", "precision=int8").precision == "int8"


DENSE = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
SMALLTHINKER = {
    **{"model_type": "smallthinker", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"moe_num_primary_experts": 8, "moe_num_active_primary_experts": 2, "moe_ffn_hidden_size": 32, "vocab_size": 256},
}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "must hold an object"),
        ("{}", "is not a Hugging Face configuration"),
        ('{"model_type": 3}', "is not a Hugging Face configuration"),
        (json.dumps(DENSE), "not a Mixture-of-Experts model"),
        (json.dumps(shrunk("mixtral_8x7b") | {"hidden_size": "wide"}), "hidden_size='wide': must be a whole number"),
        (json.dumps(shrunk("mixtral_8x7b") | {"num_attention_heads": 0}), "num_attention_heads=0: allowed are"),
        (json.dumps(shrunk("mixtral_8x7b") | {"model_type": "mixtrall"}), "no family of Transformers, did you mean"),
        (json.dumps(shrunk("mixtral_8x7b") | {"hidden_act": "nonsense"}), "does not run a mixtral"),
        (json.dumps(SMALLTHINKER), "no family of Transformers"),
    ],
)
def test_what_is_no_such_model_is_refused_in_one_line(content: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(RequestError, match=why) as refused:
        asked(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_described_machine_runs_what_transformers_lacks(tmp_path: Path) -> None:
    file = written(tmp_path / "config.json", SMALLTHINKER)
    assert text_config(asked(file, "machine=paper_a100").model.config)["model_type"] == "smallthinker"


@pytest.mark.parametrize(
    "words",
    [
        ["model.config=null"],
        ["model.config=3"],
        ["model.config=''"],
        ["model.config=nowhere.json"],
        ["model.config=."],
        ["model.config=x.json", "model.path=somewhere"],
        ["model=nano", "model.config=x.json"],
        ["model.config=x.json", "model.config.num_experts_per_tok=2"],
        ["model.config=x.json,y.json"],
    ],
)
def test_values_that_name_no_configuration_are_refused_in_one_line(words: list[str]) -> None:
    with pytest.raises(RequestError, match=r"model\.config") as refused:
        read_request(words)
    assert "\n" not in str(refused.value)
