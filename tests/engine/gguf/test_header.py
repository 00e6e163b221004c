"""Headers of GGUF files: read as they were written, and never anything but one clear line for those that are wrong."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.gguf.header import read_header
from ktbench.spec.shape import moe_shape
from tests.engine.gguf.written import METADATA, TENSORS, Written, tensor_bytes, text, value
from tests.tiny import CONFIG


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_header_says_what_was_written(file: Path) -> None:
    file.write_bytes(Written().whole())
    header = read_header(file)
    assert dict(header.metadata) == METADATA | {"qwen3moe.attention.layer_norm_rms_epsilon": pytest.approx(1e-6)}
    assert [(one.name, one.kind, one.shape) for one in header.tensors.values()] == list(TENSORS)
    content = file.read_bytes()
    for one in header.tensors.values():
        assert one.nbytes == tensor_bytes(one.kind, one.shape)
        assert set(content[one.offset : one.offset + one.nbytes]) == {1}


def test_every_kind_of_number_is_read(file: Path) -> None:
    forms = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60_000), 3: ("h", -9), 4: ("I", 4_000_000_000), 5: ("i", -1)}
    forms |= {6: ("f", 0.5), 7: ("?", True), 10: ("Q", 2**63), 11: ("q", -(2**62)), 12: ("d", 0.1)}
    fields = [text(f"{n}") + struct.pack(f"<I{form}", n, one) for n, (form, one) in forms.items()]
    lists = [text(f"[{n}]") + struct.pack(f"<IIQ2{form}", 9, n, 2, one, one) for n, (form, one) in forms.items()]
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2 * len(forms)) + b"".join(fields + lists))
    metadata = read_header(file).metadata
    for n, (_, one) in forms.items():
        assert (metadata[f"{n}"], metadata[f"[{n}]"]) == (one, [one, one])


@pytest.mark.parametrize("alignment", [32, 64, 256])
def test_data_are_aligned_as_the_file_says(file: Path, alignment: int) -> None:
    head = Written(tensors=[("a", "F32", (1,))], metadata=METADATA | {"general.alignment": alignment}).head()
    begin = -(-len(head) // alignment) * alignment
    file.write_bytes(head.ljust(begin + 4, b"\0"))
    assert read_header(file).tensors["a"].offset == begin


def test_padding_after_the_last_tensor_is_no_damage(file: Path) -> None:
    whole = Written().whole()
    file.write_bytes(whole.ljust(-(-len(whole) // 32) * 32, b"\0"))
    read_header(file)


def test_configuration_of_metadata(file: Path) -> None:
    file.write_bytes(Written().whole())
    config = inspect_checkpoint(file)
    assert (config["model_type"], config["vocab_size"], config["tie_word_embeddings"]) == ("qwen3_moe", 256, False)
    shape = moe_shape(config)
    assert (shape.layers, shape.hidden, shape.experts, shape.top_k, shape.expert_ffn) == (2, 64, 8, 2, 32)


def test_configuration_as_it_was_exported_comes_first(file: Path) -> None:
    ours = CONFIG | {"anything": [1, None]}
    file.write_bytes(Written(metadata=METADATA | {"ktbench.config": json.dumps(ours)}).whole())
    assert inspect_checkpoint(file) == ours


def without(*keys: str) -> Mapping[str, Any]:
    return {key: one for key, one in METADATA.items() if key not in keys}


WHOLE = Written().whole()
HEAD = Written().head()
PARTS = 3


def in_parts(folder: Path, **changes: Any) -> Path:
    """A file in three parts, a tensor each; the metadata of the second are changed."""
    for number, tensor in enumerate(TENSORS):
        metadata = (dict(METADATA) if number == 0 else {}) | {"split.no": number, "split.count": PARTS}
        metadata |= {"split.tensors.count": len(TENSORS)} | (changes if number == 1 else {})
        file = folder / f"m-{number + 1:05}-of-{PARTS:05}.gguf"
        file.write_bytes(Written(metadata=metadata, tensors=[tensor]).whole())
    return folder / "m-00001-of-00003.gguf"


def test_parts_are_one_file(tmp_path: Path) -> None:
    header = read_header(in_parts(tmp_path))
    assert [(one.name, one.kind, one.shape, one.part) for one in header.tensors.values()] == [
        (*tensor, number) for number, tensor in enumerate(TENSORS)
    ]
    assert header.metadata["general.architecture"] == "qwen3moe"
    assert [file.name for file in header.following] == ["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]


@pytest.mark.parametrize("part", ["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"])
def test_a_part_that_is_missing_or_wrong_is_named(part: str, tmp_path: Path) -> None:
    first = in_parts(tmp_path)
    with pytest.raises(ValueError, match=f"{part}: is one of 3 parts, must be the first"):
        read_header(tmp_path / part)
    whole = (tmp_path / part).read_bytes()
    for content, why in ((whole[:-1], "truncated"), (None, "missing, part"), (Written().whole(), "does not say")):
        (tmp_path / part).unlink() if content is None else (tmp_path / part).write_bytes(content)
        with pytest.raises(ValueError, match=f"{part}: {why}"):
            read_header(first)


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"split.no": 2}, "00002-of-00003.gguf: does not say"), ({"split.count": 4}, "00002-of-00003.gguf: does not say")],
)
def test_parts_that_disagree_are_refused(changes: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        read_header(in_parts(tmp_path, **changes))


def test_parts_hold_each_tensor_once(tmp_path: Path) -> None:
    first = in_parts(tmp_path)
    metadata = {"split.no": 2, "split.count": PARTS}
    last = tmp_path / "m-00003-of-00003.gguf"
    last.write_bytes(Written(metadata=metadata, tensors=TENSORS[:1]).whole())
    with pytest.raises(ValueError, match="'early' is in an earlier part, too"):
        read_header(first)
    last.write_bytes(Written(metadata=metadata, tensors=[]).whole())
    with pytest.raises(ValueError, match="3 parts hold 2 tensors, not 3"):
        read_header(first)


BAD = {
    "empty": (b"", "truncated, holds 0 bytes"),
    "other": (b"PK\3\4" * 20, r"not a GGUF file, begins with b'PK"),
    "version 2": (Written(version=2).whole(), "GGUF of version 2, allowed is 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GGUF of version 50331648, allowed is 3, little-endian"),
    "cut in its head": (WHOLE[:100], "truncated, its header does not fit in 100 bytes"),
    "cut in its magic": (b"GG", "truncated, its header does not fit in 2 bytes"),
    "cut in its data": (WHOLE[:-1], r"truncated, holds [\d,]+ of [\d,]+ bytes"),
    "longer": (WHOLE + bytes(64), r"damaged, holds [\d,]+ bytes where its header promises [\d,]+"),
    "many fields": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1), "truncated"),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**64 - 1, 0), "truncated"),
    "long string": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "truncated"),
    "long array": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 2**60),
        "truncated",
    ),
    "no text": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + bytes(99), "not UTF-8"),
    "no kind": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 77), "a value of kind 77"),
    "array of arrays": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(99),
        "a value of kind 9",
    ),
    "field twice": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (text("a") + value(1)),
        "its header has 'a' twice",
    ),
    "tensor twice": (Written(tensors=[("a", "F32", (1,))] * 2).whole(), "its header has 'a' twice"),
    "no dimensions": (Written(tensors=[("a", "F32", ())]).whole(), "tensor 'a' has 0 dimensions"),
    "no rows": (Written(tensors=[("a", "F32", (0, 4))]).whole(), r"tensor 'a' of F32 has the shape \(0, 4\)"),
    "part of a block": (Written(tensors=[("a", "Q8_0", (4, 48))]).whole(), r"'a' of Q8_0 has the shape \(4, 48\)"),
    "gap": (Written(gap=32).whole(), "tensor 'early' lies at"),
    "Q4_1": (
        Written(tensors=[("a", "Q4_1", (1, 256))]).whole(),
        "tensor 'a' is Q4_1, allowed are F32, F16, BF16, Q8_0, Q4_0",
    ),
    "unheard of": (Written(tensors=[("a", "unheard of", (4,))]).whole(), "tensor 'a' is of type 999, allowed are F32"),
    "alignment": (Written(metadata=METADATA | {"general.alignment": 24}).whole(), "general.alignment=24 is no power"),
    "a part": (Written(metadata=METADATA | {"split.count": 3}).whole(), "is one of 3 parts"),
    "no architecture": (Written(metadata=without("general.architecture")).whole(), "architecture None: not read here"),
    "dense model": (
        Written(metadata=METADATA | {"general.architecture": "gemma3"}).whole(),
        "architecture gemma3: not read here; allowed are qwen3moe",
    ),
    "no width": (
        Written(metadata=without("qwen3moe.embedding_length")).whole(),
        "metadata has no qwen3moe.embedding_length",
    ),
    "more layers than tensors": (
        Written(metadata=METADATA | {"qwen3moe.block_count": 2**31}).whole(),
        "qwen3moe.block_count=2147483648, with 3 tensors",
    ),
    "name of two lines": (Written(metadata=METADATA | {"general.architecture": "a\nb"}).whole(), "architecture a b"),
    "deep list": (Written(metadata=METADATA | {"ktbench.config": "[" * 100_000}).whole(), "recursion"),
    "width of text": (Written(metadata=METADATA | {"qwen3moe.embedding_length": "wide"}).whole(), "'wide'"),
    "list of widths": (Written(metadata=METADATA | {"qwen3moe.embedding_length": [1, 2]}).whole(), "list"),
    "exported badly": (Written(metadata=METADATA | {"ktbench.config": "{"}).whole(), "Expecting property name"),
    "exported list": (Written(metadata=METADATA | {"ktbench.config": "[1]"}).whole(), "ktbench.config holds list"),
    "exported stranger": (
        Written(metadata=METADATA | {"ktbench.config": '{"model_type": "gpt2"}'}).whole(),
        "model_type=gpt2",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_file_is_refused_in_one_line_that_names_it(file: Path, case: str) -> None:
    content, why = BAD[case]
    file.write_bytes(content)
    with pytest.raises(ValueError, match=why) as refused:
        inspect_checkpoint(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert "\n" not in str(refused.value)


def test_file_that_is_not_there_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match=f"model.path={file}: no such file"):
        inspect_checkpoint(file)


def test_folder_may_have_such_a_name(file: Path) -> None:
    file.mkdir()
    with pytest.raises(ValueError, match=r"no config\.json there"):
        inspect_checkpoint(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.integers(0, len(HEAD) - 1), st.binary(min_size=1, max_size=9)), max_size=4))
def test_damaged_head_is_never_anything_but_refused(file: Path, places: list[tuple[int, bytes]]) -> None:
    content = bytearray(WHOLE)
    for at, some in places:
        content[at : at + len(some)] = some
    refused_or_read(file, bytes(content))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(begin=st.integers(0, len(HEAD)), rest=st.binary(max_size=200))
def test_other_bytes_from_some_place_on_are_never_anything_but_refused(file: Path, begin: int, rest: bytes) -> None:
    refused_or_read(file, WHOLE[:begin] + rest)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    part=st.integers(1, PARTS), cut=st.integers(0, 400), places=st.lists(st.tuples(st.integers(0, 300), st.binary()))
)
def test_damaged_parts_are_never_anything_but_refused(
    tmp_path: Path, part: int, cut: int, places: list[tuple[int, bytes]]
) -> None:
    """Cut or overwritten; the line names the first part or the one that is damaged."""
    first = in_parts(tmp_path)
    file = tmp_path / f"m-{part:05}-of-{PARTS:05}.gguf"
    content = bytearray(file.read_bytes())
    for at, some in places:
        content[at : at + len(some)] = some
    refused_or_read(file, bytes(content[: len(content) - cut]), first)


def refused_or_read(file: Path, content: bytes, first: Path | None = None) -> None:
    file.write_bytes(content)
    try:
        inspect_checkpoint(first or file)
    except ValueError as error:
        assert str(error).startswith(tuple(f"{one}: " for one in (file, first) if one is not None))
        assert "\n" not in str(error)


WORDS = {
    "type": (
        Written(tensors=[("blk.0.ffn_up_exps.weight", "I32", (4,))]).whole(),
        ("blk.0.ffn_up_exps", "I32", "Q8_0"),
    ),
    "architecture": (Written(metadata=METADATA | {"general.architecture": "gemma3"}).whole(), ("gemma3", "qwen3moe")),
    "part": (Written(metadata=METADATA | {"split.count": 2}).whole(), ("model.gguf", "-00001-of-")),
    "cut": (WHOLE[:-1], ("model.gguf", "truncated")),
}


REFUSING = """
import sys
from ktbench.cli import main
codes = {main([verb, f"model.path={file}"]) for file in sys.argv[1:] for verb in ("plan", "run")}
sys.exit(max(codes) if len(codes) == 1 and not {"torch", "transformers", "gguf"} & sys.modules.keys() else 99)
"""


def test_every_verb_refuses_a_wrong_file_before_it_loads_anything(tmp_path: Path) -> None:
    files = [tmp_path / case / "model.gguf" for case in WORDS]
    for file, (content, _) in zip(files, WORDS.values(), strict=True):
        file.parent.mkdir()
        file.write_bytes(content)
    command = [sys.executable, "-c", REFUSING, *map(str, files)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2, ended.stderr
    lines = ended.stderr.strip().splitlines()
    said = [words for _, words in WORDS.values() for _verb in ("plan", "run")]
    assert all(word in line for line, words in zip(lines, said, strict=True) for word in words)


def test_inspecting_imports_neither_torch_nor_gguf() -> None:
    code = "import sys, ktbench.engine.gguf.inspecting; sys.exit(bool({'torch', 'gguf'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0
