"""Packed weights that are kept in a folder: mapped back they give the same logits, and others are refused."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import torch

from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.load import load_engine
from ktbench.engine.loading.folder import FolderSource
from ktbench.engine.loading.packed_folder import PackedFiles, PackedPart
from ktbench.engine.loading.progress import Loading, LoadProgress
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.synthetic import TransientExperts, WeightPool
from ktbench.engine.weight_plan import Packing, WeightPlan
from ktbench.spec.engine import EngineSpec
from ktbench.spec.inject import InjectSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.wire import spec_id
from tests.drawing import covering
from tests.engine.engines import FUSED, LEAN, needs_vector
from tests.engine.families.plain import build
from tests.engine.tiny import decode, run, tiny_model
from tests.full_disk import files_up_to

pytestmark = needs_vector()
BOTH = FUSED | {"packed_dense": True}
NAMES = ["deepseek_v3", "gpt_oss_20b", "qwen2_57b_a14b", "qwen3_30b_a3b"]


def cell(model: ModelSpec, precision: str = "int8", dense: str = "bf16", **engine: Any) -> RunSpec:
    return RunSpec(
        model=model,
        workload=decode(),
        engine=EngineSpec(threads=1, **engine),
        precision=precision,  # type: ignore[arg-type]
        device_precision=dense,  # type: ignore[arg-type]
        inject=LEAN,
    )


def loaded(*cells: RunSpec, progress: LoadProgress | None = None) -> HybridEngine:
    host = HostRole(cores=1)
    return load_engine(cells[0].model, WeightPlan.of(cells, host), host, progress or LoadProgress())


def logits(one: RunSpec) -> list[torch.Tensor]:
    system = loaded(one)
    system.configure(one)
    return run(system, 2)


def manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return content


def saved_times(folder: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in folder.rglob("*.packed")}


@pytest.mark.parametrize(
    ("name", "stored"),
    covering(product(NAMES, (pytest.param(False, id="synthetic"), pytest.param(True, id="folder")))),
)
def test_saved_and_mapped_weights_give_the_same_logits(name: str, stored: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint") if stored else None
    if path is not None:
        build(tiny_model(name)).save_pretrained(path)
    expected = logits(cell(tiny_model(name, path=path), **BOTH))
    kept = replace(tiny_model(name, path=path), packed=str(tmp_path / "kept"))
    assert all(map(torch.equal, logits(cell(kept, **BOTH)), expected))
    times = saved_times(tmp_path)
    assert all(map(torch.equal, logits(cell(kept, **BOTH)), expected))
    assert times == saved_times(tmp_path) != {}


@pytest.mark.parametrize("precision", ["bf16", "int4_g32", "q8_0", "mxfp4"])
def test_every_precision_has_a_folder_of_its_own(precision: str, tmp_path: Path) -> None:
    kept = replace(tiny_model(), packed=str(tmp_path))
    logits(cell(kept, "int8", **FUSED))
    first = logits(cell(kept, precision, precision, **BOTH))
    assert all(map(torch.equal, logits(cell(kept, precision, precision, **BOTH)), first))
    folders = {f"experts-{precision}", f"linear-{precision}", "experts-int8"}
    assert {folder.name for folder in tmp_path.iterdir()} == folders


def test_weights_that_are_mapped_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = cell(replace(tiny_model("qwen2_57b_a14b"), packed=str(tmp_path)), **BOTH)
    expected, filled, fill = logits(one), set[str](), WeightPool.fill
    monkeypatch.setattr(TransientExperts, "__call__", lambda *_: pytest.fail("an expert was made"))
    monkeypatch.setattr(WeightPool, "fill", lambda self, to, name: (filled.add(name), fill(self, to, name))[1])
    assert all(map(torch.equal, logits(one), expected))
    assert not any(word in name for name in filled for word in ("q_proj", "down_proj", "lm_head"))
    assert any("embed_tokens" in name for name in filled)


def test_weights_that_are_mapped_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkpoint"
    build(tiny_model("qwen2_57b_a14b")).save_pretrained(folder)
    one = cell(replace(tiny_model("qwen2_57b_a14b", path=str(folder)), packed=str(tmp_path / "kept")), **BOTH)
    expected, seen, read = logits(one), set[str](), FolderSource._read
    monkeypatch.setattr(FolderSource, "_read", lambda self, name, i=None: (seen.add(name), read(self, name, i))[1])
    assert all(map(torch.equal, logits(one), expected))
    assert not any(".experts." in name for name in seen)
    assert "model.layers.0.self_attn.q_proj.weight" not in seen
    assert {"model.layers.0.self_attn.q_proj.bias", "model.embed_tokens.weight"} <= seen


def test_cells_with_original_weights_read_them_all_the_same(tmp_path: Path) -> None:
    def of_both(model: ModelSpec) -> list[torch.Tensor]:
        cells = cell(model, "bf16"), cell(model, "bf16", **BOTH)
        system, seen = loaded(*cells), []
        for one in cells:
            system.configure(one)
            seen += run(system, 2)
        return seen

    expected = of_both(tiny_model())
    for _ in range(2):
        assert all(map(torch.equal, of_both(replace(tiny_model(), packed=str(tmp_path))), expected))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "weights"),
        ({"config": tiny_model().config | {"rms_norm_eps": 1e-3}}, "weights"),
        ({"config": tiny_model().config | {"num_hidden_layers": 1}}, "number of layers"),
    ],
)
def test_other_models_are_refused_in_one_line(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    kept = replace(tiny_model(), packed=str(tmp_path))
    loaded(cell(kept, **FUSED))
    with pytest.raises(ValueError, match=rf"experts-int8 differs in its {named}.*delete this one") as refused:
        loaded(cell(replace(kept, **change), **FUSED))
    assert "\n" not in str(refused.value)


def test_a_checkpoint_that_was_changed_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    build(tiny_model()).save_pretrained(folder)
    one = cell(replace(tiny_model(path=str(folder)), packed=str(tmp_path / "kept")), **FUSED)
    loaded(one)
    build(tiny_model(seed=1)).save_pretrained(folder)
    with pytest.raises(ValueError, match="differs in its weights"):
        loaded(one)


def test_other_rules_for_linear_layers_are_refused(tmp_path: Path) -> None:
    one = cell(replace(tiny_model(), packed=str(tmp_path)), **BOTH)
    loaded(one)
    fewer = InjectSpec(name="own", rules=tuple(rule for rule in LEAN.rules if rule.operator != "shared"))
    with pytest.raises(ValueError, match="linear-bf16 differs in its injection rules"):
        loaded(replace(one, inject=fewer))


KEYS = ["version", "layout", "domains", "precision", "layers", "weights"]


@pytest.mark.parametrize("key", KEYS)
def test_every_entry_of_the_manifest_counts(key: str, tmp_path: Path) -> None:
    one = cell(replace(tiny_model(), packed=str(tmp_path)), **FUSED)
    loaded(one)
    folder = tmp_path / "experts-int8"
    (folder / "manifest.json").write_text(json.dumps(manifest(folder) | {key: 99}))
    with pytest.raises(ValueError, match="99 there"):
        loaded(one)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": 3}', "[" * 100_000])
def test_a_damaged_manifest_is_refused(text: str, tmp_path: Path) -> None:
    one = cell(replace(tiny_model(), packed=str(tmp_path)), **FUSED)
    loaded(one)
    (tmp_path / "experts-int8" / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="no manifest that can be read"):
        loaded(one)


@pytest.mark.parametrize("cut", [None, 0, -1])
def test_a_missing_or_shortened_file_is_refused(cut: int | None, tmp_path: Path) -> None:
    one = cell(replace(tiny_model(), packed=str(tmp_path)), **FUSED)
    loaded(one)
    file = tmp_path / "experts-int8" / "layer-001.packed"
    file.unlink() if cut is None else file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"lacks layer-001\.packed"):
        loaded(one)


def test_what_is_no_file_of_experts_is_refused_by_name(tmp_path: Path) -> None:
    one = cell(replace(tiny_model(), packed=str(tmp_path)), **FUSED)
    loaded(one)
    file = tmp_path / "experts-int8" / "layer-001.packed"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(Unsupported, match=r"layer-001\.packed holds no packed experts"):
        loaded(one)


def test_what_was_interrupted_is_packed_anew(tmp_path: Path) -> None:
    one = cell(replace(tiny_model(), packed=str(tmp_path)), **FUSED)
    expected, folder = logits(one), tmp_path / "experts-int8"
    (folder / "manifest.json").unlink()
    (folder / "layer-000.packed").write_bytes(b"half")
    for name in ("layer-007.packed", "layer-001.packed.partial-0", "manifest.json.packed"):
        (folder / name).write_bytes(b"left")
    (folder / "notes.txt").write_text("mine")
    assert all(map(torch.equal, logits(one), expected))
    assert {file.name for file in folder.iterdir()} == {
        *manifest(folder)["files"],
        "manifest.json",
        "lock",
        "notes.txt",
    }


def test_an_error_while_packing_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, seen = cell(replace(tiny_model(), packed=str(tmp_path)), **FUSED), []

    def fail(self: TransientExperts, i: int) -> None:
        seen.append(i)
        if len(seen) > self.form.experts:
            raise KeyboardInterrupt

    make = TransientExperts.__call__
    with monkeypatch.context() as patched:
        patched.setattr(TransientExperts, "__call__", lambda self, i: (fail(self, i), make(self, i))[1])
        with pytest.raises(KeyboardInterrupt):
            loaded(one)
    assert not (tmp_path / "experts-int8" / "manifest.json").exists()
    assert all(map(torch.equal, logits(one), logits(cell(tiny_model(), **FUSED))))


def test_a_full_disk_leaves_nothing_and_says_so_in_one_line(tmp_path: Path) -> None:
    one, folder = cell(replace(tiny_model(), packed=str(tmp_path)), **BOTH), tmp_path / "linear-bf16"
    loaded(one)
    for file in tmp_path.rglob("manifest.json"):
        file.unlink()
    largest = max(file.stat().st_size for file in folder.glob("*.packed"))
    with files_up_to(largest - 1), pytest.raises(Unsupported, match=r"model\.packed=.*nothing was kept") as refused:
        loaded(one)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("manifest.json"))
    assert [file.name for file in folder.iterdir()] == ["lock"]


def test_a_disk_that_is_full_when_only_the_manifest_is_left_keeps_nothing(tmp_path: Path) -> None:
    part = PackedPart(packed=str(tmp_path), kind="experts", identity={"precision": "int8"})
    files = PackedFiles(part=part, is_whole=False)
    part.folder.mkdir()
    (part.folder / "0.packed").write_bytes(b"weights")
    with files_up_to(8), pytest.raises(Unsupported, match=r"manifest\.json: .*nothing was kept"):
        files.finish()
    assert list(part.folder.iterdir()) == []


def test_two_processes_do_not_save_at_once(tmp_path: Path) -> None:
    one = cell(replace(tiny_model(), packed=str(tmp_path)), **FUSED)
    (tmp_path / "experts-int8").mkdir()
    with (tmp_path / "experts-int8" / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unsupported, match="another process is packing experts-int8"):
            loaded(one)
    loaded(one)


def test_the_lock_is_a_file_of_the_folder_itself(tmp_path: Path) -> None:
    """The folder comes from others, too: a link in it makes no file elsewhere."""
    elsewhere, lock = tmp_path / "elsewhere", tmp_path / "packed" / "experts-int8" / "lock"
    lock.parent.mkdir(parents=True)
    lock.symlink_to(elsewhere)
    with pytest.raises(Unsupported, match=r"lock: .*no regular file"):
        loaded(cell(replace(tiny_model(), packed=str(tmp_path / "packed")), **FUSED))
    assert not elsewhere.exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unsupported, match=r"model\.packed=.*file"):
        loaded(cell(replace(tiny_model(), packed=str(tmp_path / "file")), **FUSED))


def test_experts_over_domains_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="split over domains"):
        loaded(cell(replace(tiny_model(), packed=str(tmp_path)), domains=2, **FUSED))


def test_on_several_nodes_mapped_experts_are_not_split(tmp_path: Path) -> None:
    host, model = HostRole(cores=2, cpus=(0, 1), nodes=(0, 1)), tiny_model()
    assert Packing.of(cell(model, **FUSED), host).domains == 2
    assert Packing.of(cell(replace(model, packed=str(tmp_path)), **FUSED), host).domains == 1


def test_the_folder_is_no_part_of_the_request_but_that_weights_are_mapped_is(tmp_path: Path) -> None:
    model = tiny_model()
    one, two = (replace(model, packed=str(tmp_path / name)) for name in "ab")
    assert spec_id(cell(one, **FUSED)) == spec_id(cell(two, **FUSED)) != spec_id(cell(model, **FUSED))
    assert spec_id(cell(one)) == spec_id(cell(model))


def test_progress_counts_every_byte_of_every_stage_once(tmp_path: Path) -> None:
    kept, stages = cell(replace(tiny_model(), packed=str(tmp_path)), **BOTH), []
    for _ in range(2):
        seen: list[Loading] = []
        loaded(kept, progress=LoadProgress(seen.append, map(float, count()).__next__))
        stages.append(list(dict.fromkeys(one.stage for one in seen)))
        for stage in stages[-1]:
            of_stage = [one for one in seen if one.stage == stage]
            done = [one.done_bytes for one in of_stage]
            assert done == sorted(done)
            assert done[-1] == of_stage[-1].total_bytes > 0
        assert seen[-1].doing.endswith("layer 2/2")
    assert [stage[-1] for stage in stages] == ["packing", "mapping"]
