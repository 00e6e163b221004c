"""What the files beside the weights say about how these are quantised: read, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktbench.engine.loading.config_file import read_object

_MODELOPT = "hf_quant_config.json"  # where NVIDIA's Model Optimizer says what config.json may leave out
_READ = "FP8 in e4m3, INT4 of compressed-tensors, GPTQ and AWQ, NVFP4, and mxfp4 of gpt_oss"
_ALLOWED = f"bf16, fp16 and fp32, {_READ}"
_BLOCK_SIZE = [128, 128]
_CT_FORMATS = ("float-quantized", "naive-quantized", "pack-quantized", "nvfp4-pack-quantized", "mixed-precision")
_ALGORITHMS = ("FP8", "NVFP4")
Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """How weights are quantised beyond what their tensors show; without a `name` nothing says that they are.

    Of INT4: `symmetric` where every zero point is 8, `zero_offset` is added to the zero points as they are stored,
    `reordered` where groups need not be runs of columns.
    """

    name: str = ""
    symmetric: bool = True
    zero_offset: int = 0
    reordered: bool = False


def read_method(path: Path, config: Facts) -> Method:
    """The method of a folder with this `config.json`. Raises ValueError for one that is not read."""
    facts = _facts(path, config)
    if facts is None:
        return Method()
    name = str(facts.get("quant_method"))
    differs = next(_differences(name, facts, config), None)
    if differs is not None:
        raise ValueError(f"model.path={path}: weights quantised by {name}{differs}, allowed are {_ALLOWED}")
    gptq_v1 = name == "gptq" and facts.get("checkpoint_format", "gptq") == "gptq"
    return Method(
        name=name,
        symmetric=not facts.get("zero_point", True) if name == "awq" else bool(facts.get("sym", True)),
        zero_offset=1 if gptq_v1 else 0,
        reordered=bool(facts.get("desc_act", False)),
    )


def announced_formats(config: Facts) -> tuple[str, str]:
    """Formats of the routed experts and of the attention of a release, as its `config.json` alone announces them.

    What numbers are not quantised to here, and what has no description, is bf16.
    """
    facts = _described(config) or {}
    name, kind = facts.get("quant_method"), facts.get("format")
    if name == "fp8" or (name == "compressed-tensors" and kind in _CT_FORMATS[:2]):
        return "fp8", "fp8"
    if name == "compressed-tensors" and kind == "pack-quantized":
        return "int4_bf16", "bf16"
    return ("mxfp4" if name == "mxfp4" else "bf16"), "bf16"


def _described(config: Facts) -> Facts | None:
    for one in (config, config.get("text_config")):
        if isinstance(one, Mapping) and (facts := one.get("quantization_config")):
            return facts if isinstance(facts, dict) else {"quant_method": facts}
    return None


def _facts(path: Path, config: Facts) -> Facts | None:
    if facts := _described(config):
        return facts
    file = path / _MODELOPT
    if not file.is_file():
        return None
    facts = read_object(file, str(file)).get("quantization", {})
    if not isinstance(facts, dict):
        raise ValueError(f"{file}: quantization holds {type(facts).__name__}, must hold an object")
    return {**facts, "quant_method": "modelopt"}


def _differences(name: str, facts: Facts, config: Facts) -> Iterator[str]:
    """What is not read, as it follows the name of the method; an empty text where the method is not."""
    if name not in _CHECKS:
        yield ""
        return
    try:
        yield from _CHECKS[name](facts, config)
    except (TypeError, AttributeError) as error:
        yield f" in terms that are unknown ({error})"


def _fp8(facts: Facts, _config: Facts) -> Iterator[str]:
    if "e4m3" not in facts.get("fmt", "e4m3"):
        yield f" with fmt={facts['fmt']}"
    if (size := facts.get("weight_block_size")) not in (None, _BLOCK_SIZE):
        yield f" with weight_block_size={size}"


def _compressed_tensors(facts: Facts, _config: Facts) -> Iterator[str]:
    if (kind := facts.get("format")) not in _CT_FORMATS:
        yield f" with format={kind}"
    if (facts.get("transform_config") or {}).get("config_groups"):
        yield " with transform_config: rotated weights need rotated activations"
    for name, group in facts.get("config_groups", {}).items():
        weights = group.get("weights") or {}
        if not _is_read(weights):
            said = ", ".join(f"{key}={weights.get(key)}" for key in ("type", "num_bits", "symmetric"))
            yield f" with {said} in {name}"


def _is_read(weights: Facts) -> bool:
    kind = (weights.get("type"), weights.get("num_bits"))
    return kind in (("float", 8), ("float", 4), ("int", 4)) and weights.get("symmetric", True)


def _modelopt(facts: Facts, _config: Facts) -> Iterator[str]:
    if (algorithm := facts.get("quant_algo")) not in _ALGORITHMS:
        yield f" with quant_algo={algorithm}"


def _gptq(facts: Facts, _config: Facts) -> Iterator[str]:
    if (bits := facts.get("bits")) != 4:
        yield f" with bits={bits}"
    if (form := facts.get("checkpoint_format", "gptq")) not in ("gptq", "gptq_v2"):
        yield f" with checkpoint_format={form}"


def _awq(facts: Facts, _config: Facts) -> Iterator[str]:
    if (bits := facts.get("bits")) != 4:
        yield f" with bits={bits}"
    if (version := str(facts.get("version", "gemm"))).lower() != "gemm":
        yield f" with version={version}"


def _mxfp4(_facts: Facts, config: Facts) -> Iterator[str]:
    if (kind := config.get("model_type")) != "gpt_oss":
        yield f" of {kind}"


_CHECKS: Mapping[str, Callable[[Facts, Facts], Iterator[str]]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "gptq": _gptq,
    "awq": _awq,
    "mxfp4": _mxfp4,
}
