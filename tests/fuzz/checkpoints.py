"""Checkpoints with damage: safetensors folders and GGUF files, planned, then loaded, then a step run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.child import ktbench, made, watched
from tests.fuzz.numbers import FileTruth, FolderTruth, Truth, require_experts, require_network
from tests.fuzz.words import all_changed, changes, contents

_SHARDS = 8
_WEIGHTS, _INDEX, _CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
# Tiny checkpoints by name: the known model they are of, and how weights are stored (`tests.engine.stored.written`).
_RELEASES = {"fp8": "qwen3_30b_a3b", "int4": "qwen3_30b_a3b", "gptq": "qwen3_30b_a3b", "awq": "mixtral_8x7b"}
_RELEASES |= {"nvfp4": "qwen3_30b_a3b", "gptq with zeros": "qwen3_30b_a3b"}
_PLAIN = {"plain": "qwen3_30b_a3b", "latent": "deepseek_v3", "biases": "gpt_oss_20b", "sharded": "qwen3_30b_a3b"}
_GGUF = {"bf16": "qwen3_30b_a3b", "q8_0": "deepseek_v3", "q4_0": "glm_4_5_air", "mxfp4": "gpt_oss_20b"}
_PRECISIONS = ("native", "bf16", "int8", "int4")
_KINDS = ("BF16", "F32", "F16", "U8", "I32", "F8_E4M3", "F64", "BOOL", "Q9", "")
_NUMBERS = (0, 1, 2, 3, 8, 31, 32, 33, 64, 255, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


# NaN, infinities and the largest numbers of half precision, bf16, float32 and e4m3, some of them in a row.
_BAD_NUMBERS = st.builds(
    lambda one, count: one * count,
    st.sampled_from(["007e", "007c", "00fc", "c07f", "807f", "80ff", "0000c07f", "0000807f", "ff", "7f", "7e"]),
    st.sampled_from([1, 1, 8, 64]),
)


def _bytes_changed() -> st.SearchStrategy[Any]:
    """Anywhere, near the beginning, where headers are, or near the end, where only numbers are."""
    at = st.integers(0, 10**7) | st.integers(0, 400) | st.integers(0, 20_000) | st.integers(-20_000, -1)
    return st.one_of(
        st.tuples(st.just("bit"), at, st.integers(0, 7)).map(list),
        st.tuples(st.just("put"), at, st.binary(min_size=1, max_size=9).map(bytes.hex) | _BAD_NUMBERS).map(list),
        st.tuples(st.just("cut"), at).map(list),
        st.tuples(st.just("grow"), st.binary(min_size=1, max_size=40).map(bytes.hex)).map(list),
        st.tuples(st.just("take"), at, st.integers(1, 64)).map(list),
    )


def _misplaced() -> st.SearchStrategy[Any]:
    """Tensors that the index says are in another shard, or in no shard."""
    shards = [f"model-0000{number}-of-0000{_SHARDS}.safetensors" for number in range(1, _SHARDS + 1)]
    names = st.sampled_from([*shards, "model-00009-of-00009.safetensors", "config.json", "."])
    change = st.tuples(st.tuples(st.just(1), st.integers(0, 40)).map(list), st.just("set"), names)
    return st.lists(change.map(list), min_size=1, max_size=2)


def folders() -> st.SearchStrategy[Any]:
    """A safetensors folder and damage of its weights, their header, the index and the configuration."""
    tensor = st.integers(0, 300)
    sizes = st.lists(st.sampled_from(_NUMBERS), max_size=4) | st.lists(st.integers(1, 256), min_size=1, max_size=3)
    offsets = st.lists(st.sampled_from([*_NUMBERS, -1, -8]) | st.integers(0, 10**6), max_size=3)
    header = st.one_of(
        st.tuples(st.just("shape"), tensor, sizes | st.just("turned") | st.just("flat") | contents()).map(list),
        st.tuples(st.just("dtype"), tensor, st.sampled_from(_KINDS) | contents()).map(list),
        st.tuples(st.just("data_offsets"), tensor, offsets | contents()).map(list),
        st.tuples(st.just("swap"), tensor, tensor).map(list),
        st.tuples(st.just("exchange"), tensor, tensor).map(list),
        st.tuples(st.just("twice"), tensor, tensor).map(list),
        st.tuples(st.just("same"), tensor, tensor).map(list),
        st.tuples(st.just("drop"), tensor).map(list),
        st.tuples(
            st.just("name"), tensor, st.sampled_from(["a", "", "lm_head.weight", "x.weight_scale", "\ud800"])
        ).map(list),
        st.tuples(st.just("add"), contents()).map(list),
        st.tuples(st.just("text"), st.sampled_from(["", "[]", "null", "[" * 3000, '{"a":' * 3000, "{}", "{"])).map(
            list
        ),
    )
    return st.fixed_dictionaries(
        {
            "of": st.sampled_from([*_PLAIN, *_RELEASES]),
            "bytes": st.lists(_bytes_changed(), max_size=2),
            "header": st.lists(header, max_size=2),
            "index": changes(1) | _misplaced() | st.just([]) | st.just([]),
            "config": changes(1) | st.just([]) | st.just([]),
            "precision": st.sampled_from(_PRECISIONS),
        }
    ).filter(lambda found: any(found[key] for key in ("bytes", "header", "index", "config")))


def files() -> st.SearchStrategy[Any]:
    """A GGUF file and damage of its bytes, or of numbers and texts of its header by their places."""
    place = st.integers(0, 2000)
    field = st.one_of(
        st.tuples(st.just("number"), place, st.sampled_from(_NUMBERS) | st.integers(0, 300)).map(list),
        st.tuples(st.just("number"), place, st.sampled_from(_NUMBERS) | st.integers(0, 300)).map(list),
        st.tuples(st.just("letter"), place, st.integers(0, 255)).map(list),
    )
    return st.fixed_dictionaries(
        {
            "of": st.sampled_from(list(_GGUF)),
            "bytes": st.lists(_bytes_changed(), max_size=2),
            "fields": st.lists(field, max_size=2),
            "precision": st.sampled_from(_PRECISIONS),
        }
    ).filter(lambda found: found["bytes"] or found["fields"])


def prepare_folders(folder: Path) -> None:
    """A folder for each kind of weights."""
    from tests.engine.families.plain import build
    from tests.engine.stored.written import RELEASES, write
    from tests.engine.tiny import tiny_model

    for name, model in _PLAIN.items():
        build(tiny_model(model)).save_pretrained(folder / name, max_shard_size="60KB" if name == "sharded" else "5GB")
    for name, model in _RELEASES.items():
        there = write(model, RELEASES[name], folder / "made").folder
        there.rename(folder / name)
        shutil.rmtree(folder / "made")


def prepare_files(folder: Path) -> None:
    """A file for each kind of weights."""
    from ktbench.engine.gguf.export import export_gguf
    from tests.engine.gguf.tinies import restless, saved

    for kind, model in _GGUF.items():
        there = saved(restless(model), folder / "made")
        name: Any = kind.upper()
        export_gguf(there, folder / f"{kind}.gguf", experts=name, dense=name, say=lambda _: None)
        shutil.rmtree(folder / "made")


def carry_out(data: Any) -> int:
    """Plan; where that is accepted load and run a step, whose weights must have the shapes of the model."""
    is_file = "fields" in data
    path = _file(data) if is_file else _folder(data)
    words = [f"model.path={path}", f"precision={data['precision']}", "workload.prompt=4", "workload.steps=1"]
    words += [] if data["precision"] == "bf16" else ["engine.avx2=true"]
    code = ktbench("plan", *words)
    if code == 0:
        with watched():
            return _loaded(words, lambda config: FileTruth(path, config) if is_file else FolderTruth(path, data["of"]))
    return code


def _loaded(words: list[str], read: Callable[[dict[str, Any]], Truth]) -> int:
    import numpy as np

    from ktbench.engine.hybrid import HybridEngine
    from ktbench.engine.load import load_components
    from ktbench.engine.protocol import HostRole, Unsupported
    from ktbench.engine.synthetic import skeleton
    from ktbench.engine.weight_plan import WeightPlan
    from ktbench.run.request import read_request

    spec = read_request(words).parts[0].spec
    host = HostRole(cores=1)
    _compare(read)
    try:
        parts = load_components(spec.model, WeightPlan.of([spec], host), host)
        engine = HybridEngine(spec.model, parts)
        engine.configure(spec)
    except (ValueError, Unsupported) as error:  # a row with this reason
        _require_line(str(error))
        return 4
    shapes = {name: one.shape for name, one in skeleton(spec.model).named_parameters()}
    held = {name: one.shape for name, one in parts.network.named_parameters() if not one.is_meta}
    wrong = {name: shape for name, shape in held.items() if name in shapes and shapes[name] != shape}
    assert not wrong, f"loaded in other shapes: {wrong}"
    engine.start()
    engine.step()
    logits = np.asarray(engine.logits())
    assert logits.shape[-1] == spec.model.shape.vocab, logits.shape
    return 0


def _compare(read: Callable[[dict[str, Any]], Truth]) -> None:
    """Hold what this process loads from now on against what another reader sees."""
    from ktbench.engine.loading.network import FilledNetwork

    fill, experts = FilledNetwork.__init__, FilledNetwork.experts

    def filled(self: Any, source: Any, *others: Any) -> None:
        fill(self, source, *others)
        self.truth = read(source.network.config.to_dict())
        require_network(self.truth, self.network)

    def packed(self: Any, name: str, module: Any) -> Any:
        store = experts(self, name, module)
        require_experts(self.truth, name, store, len(module.get_parameter("down_proj")))
        return store

    FilledNetwork.__init__, FilledNetwork.experts = filled, packed  # type: ignore[method-assign]


def _require_line(text: str) -> None:
    assert text and text.count("\n") == 0, f"a reason of other than one line: {text}"


def _folder(data: Any) -> Path:
    folder = shutil.copytree(made("safetensors") / data["of"], Path("checkpoint"))
    weights = next(iter(sorted(folder.glob("*.safetensors"))))
    content = weights.read_bytes()
    if data["header"]:
        content = _with_header(content, data["header"])
    weights.write_bytes(_damaged(content, data["bytes"]))
    for name, key in ((_INDEX, "index"), (_CONFIG, "config")):
        file = folder / name
        if data[key] and file.exists():
            file.write_text(json.dumps(all_changed(json.loads(file.read_text()), data[key])))
    return folder


def _with_header(content: bytes, edits: Any) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header, text, again = json.loads(content[8 : 8 + size]), None, ""
    for kind, *values in edits:
        if kind == "text":
            text = values[0]
        elif kind == "twice":
            again += _entry_again(header, values)
        elif kind == "add":
            header["added"] = values[0]
        else:
            _edit(header, kind, values)
    written = (json.dumps(header)[:-1] + again + "}" if text is None else text).encode()
    return len(written).to_bytes(8, "little") + written + content[8 + size :]


def _entry_again(header: dict[str, Any], values: list[int]) -> str:
    """The name of a tensor a second time, with the entry of another."""
    names = [name for name in header if name != "__metadata__"] or [""]
    name, other = (names[value % len(names)] for value in values)
    return f", {json.dumps(name)}: {json.dumps(header.get(other))}"


def _edit(header: dict[str, Any], kind: str, values: list[Any]) -> None:
    names = [name for name in header if name != "__metadata__" and isinstance(header[name], dict)]
    if not names:
        return
    name, other = names[values[0] % len(names)], names[values[-1] % len(names)] if isinstance(values[-1], int) else ""
    entry = header[name]
    if kind in ("shape", "dtype", "data_offsets"):
        shape = entry.get("shape")
        turned = {"turned": shape[::-1] if isinstance(shape, list) else shape, "flat": [_product(shape)]}
        entry[kind] = turned.get(values[1], values[1]) if isinstance(values[1], str) and kind == "shape" else values[1]
    elif kind == "drop":
        del header[name]
    elif kind == "name":
        header[values[1]] = header.pop(name)
    elif kind == "same":
        header[name] = dict(header[other])
    elif kind == "exchange":
        offsets = [header[one].get("data_offsets") for one in (other, name)]
        header[name], header[other] = (
            header[one] | {"data_offsets": held} for one, held in zip((name, other), offsets, strict=True)
        )
    else:
        header[name], header[other] = header[other], header[name]


def _product(sizes: Any) -> int:
    total = 1
    for size in sizes if isinstance(sizes, list) else ():
        total *= size if isinstance(size, int) else 1
    return total


def _file(data: Any) -> Path:
    content = (made("gguf") / f"{data['of']}.gguf").read_bytes()
    numbers, letters = _places(content)
    damaged = bytearray(content)
    for kind, place, value in data["fields"]:
        if kind == "letter":
            damaged[letters[place % len(letters)]] = value
        else:
            at, size = numbers[place % len(numbers)]
            damaged[at : at + size] = (value % 256**size).to_bytes(size, "little")
    path = Path("checkpoint.gguf")
    path.write_bytes(_damaged(bytes(damaged), data["bytes"]))
    return path


def _damaged(content: bytes, edits: Any) -> bytes:
    held = bytearray(content)
    for kind, *values in edits:
        at = values[0] % len(held) if held and isinstance(values[0], int) else 0
        if kind == "bit" and held:
            held[at] ^= 1 << values[1]
        elif kind == "put":
            held[at : at + len(values[1]) // 2] = bytes.fromhex(values[1])
        elif kind == "cut":
            del held[at:]
        elif kind == "grow":
            held += bytes.fromhex(values[0])
        elif kind == "take":
            del held[at : at + values[1]]
    return bytes(held)


_SIZES: Mapping[int, int] = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _ARRAY = 8, 9


def _places(content: bytes) -> tuple[list[tuple[int, int]], list[int]]:
    """Where a whole GGUF file has numbers in its header, with their sizes, and where letters (docs/gguf.md of ggml)."""
    reader = _Reader(content)
    tensors, fields = (reader.number(size) for size in (8, 8))
    for _ in range(fields):
        reader.text()
        reader.value(reader.number(4))
    for _ in range(tensors):
        reader.text()
        for _ in range(reader.number(4)):
            reader.number(8)
        reader.number(4)
        reader.number(8)
    return [(0, 4), (4, 4), *reader.numbers], reader.letters


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 8
        self.numbers: list[tuple[int, int]] = []
        self.letters: list[int] = []

    def number(self, size: int) -> int:
        self.numbers.append((self._at, size))
        self._at += size
        return int.from_bytes(self._content[self._at - size : self._at], "little")

    def text(self) -> None:
        count = self.number(8)
        self.letters += range(self._at, self._at + count)
        self._at += count

    def value(self, kind: int) -> None:
        if kind == _TEXT:
            self.text()
        elif kind == _ARRAY:
            inner, count = self.number(4), self.number(8)
            for _ in range(count):
                self.value(inner)
        else:
            self.number(_SIZES[kind])
