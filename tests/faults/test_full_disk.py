"""A disk that fills during every kind of file that is written: its name is said, and no half of it is left."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bootstrap
import ktbench
from ktbench.api import Result
from ktbench.cli import advise, trace, validate
from ktbench.engine.gguf.export import export_gguf
from ktbench.engine.loading.packed_folder import PackedFiles, PackedPart
from ktbench.engine.protocol import Unsupported
from ktbench.engine.serving.page_folder import PageFolder
from ktbench.engine.workload.recorded import ActivationProfile, Architecture
from ktbench.eval.drift import ReferenceHeader, write_reference
from ktbench.eval.lm.cache import AnswerCache
from ktbench.eval.lm.samples import SampleLog
from ktbench.host import crossovers
from ktbench.host.describe import MachineDescription, save_description
from ktbench.report import joined
from ktbench.report.comparison_table import write_comparison
from ktbench.report.exchange.artifact import write_artifact
from ktbench.report.write import write_report
from ktbench.results import Log, Run, read_run
from ktbench.results.comparison import compare_runs
from ktbench.results.find import note_latest
from ktbench.results.log import PLAN_NAME
from ktbench.run import open_run
from ktbench.run.agreement import SavedLogits
from ktbench.run.cluster.shards import shard_of, write_shard
from ktbench.spec.errors import RequestError, error_text
from ktbench.spec.run_spec import MeasureSpec
from tests.full_disk import files_up_to
from tests.report.synthetic import Arm, Store
from tests.tiny import tiny_spec

PACKAGE = Path(ktbench.__file__).parent
ARMS = (Arm(label="base", step_ms=182.0), Arm(label="+v", step_ms=61.0))
MODEL = tiny_spec().model
ROOM_BYTES = 3  # on the full disk: a part of any file, and none of them whole
ANSWER = "an answer" * 20
NUMBERS = np.arange(64, dtype=np.int64).reshape(8, 8)


@dataclass(frozen=True, kw_only=True)
class Writer:
    """What writes `file`, a name below the folder that it is given, and the module that does so.

    `reads` says what of a file that is appended to still counts. Where `needed` is False, it is done without.
    """

    module: str
    file: str
    write: Callable[[Path], object]
    reads: Callable[[Path], object] | None = None
    needed: bool = True


def _run(folder: Path) -> Run:
    """The synthetic run in a folder, written where it is not there yet."""
    there = folder / "quiet"
    return read_run(there) if there.exists() else Store(arms=ARMS, run="quiet", drift=0.0, steps=1).write(folder)


def _report(form: str, folder: Path) -> None:
    write_report(_run(folder), [form])


def _compare(folder: Path) -> None:
    write_comparison(compare_runs(_run(folder), _run(folder), 0.03))


def _append(folder: Path) -> None:
    log = Log(folder / "quiet")
    try:
        log.append(*_run(folder).records)
    finally:
        log.close()


def _begin(folder: Path) -> None:
    log = Log(folder / "new")
    try:
        log.append(_run(folder).header)
    finally:
        log.close()


def _copy(folder: Path) -> None:
    log = Log(folder / "new")
    try:
        log._copy(_run(folder).header)
    finally:
        log.close()


def _profile(folder: Path) -> None:
    about = Architecture.of(MODEL)
    profile = ActivationProfile(model="tiny", architecture=about, counts=NUMBERS, tokens=8, source="prompts")
    profile.save(folder / "profile.npz")


def _samples(folder: Path) -> None:
    log = SampleLog(SimpleNamespace())  # type: ignore[arg-type]
    log._lines["none"].append({"doc": "question" * 100})
    log.write(folder / "samples.jsonl")


def _reference(folder: Path) -> None:
    subject = ReferenceHeader(model="abc", phase="decode", text="text", windows=1, positions=50, vocab=100)
    with write_reference(folder / "reference.bin", subject) as add:
        add(np.zeros((50, 100), np.float32))


def _answers(folder: Path) -> None:
    AnswerCache(folder, "answers").put({str(number): ANSWER for number in range(20)})


def _packed(folder: Path) -> None:
    kernels = pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    part = PackedPart(packed=str(folder), kind="linear", identity={"precision": "bf16"})
    part.folder.mkdir(parents=True, exist_ok=True)
    matrix = kernels.PackedMatrix(101, 72, "bf16")
    PackedFiles(part=part, is_whole=False).take("0", kernels.PackedMatrix, lambda: matrix)


def _manifest(folder: Path) -> None:
    part = PackedPart(packed=str(folder), kind="linear", identity={"precision": "bf16", "weights": "x" * 500})
    part.folder.mkdir(parents=True, exist_ok=True)
    PackedFiles(part=part, is_whole=False).finish()


def _page(folder: Path) -> None:
    pages = PageFolder(folder, "model")
    try:
        pages.write("0" * 32, b"keys" * 5000, 1)
    finally:
        pages.close()


def _validate(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(validate, "_of_publications", lambda *, fit: {"validation.md": "judged\n"})
        validate.run([f"out={folder}"])


def _advice(folder: Path) -> None:
    advise.run(["cpu=Ryzen 9 9950X", "ram=2x48 DDR5-5600", "model=qwen3_30b_a3b", f"out={folder / 'box.yaml'}"])


def _parquet(folder: Path) -> None:
    Result(run=_run(folder)).to_parquet(folder)


def _trace(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr("ktbench.report.figures.output.save", lambda *_: [])  # the picture is written before
        trace.run(["model=tiny", "machine=paper_a100", "run_name=seen"])


def _crossovers(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KTBENCH_CACHE", str(folder))
        one = crossovers.Crossover(isa="avx2", precision="bf16", fetch_from=2, block_from=9)
        crossovers._write("machine", {"bf16": (one,)})


def _machine(folder: Path) -> None:
    machine = MachineDescription(
        name="a CPU", env_id="env", created="2026-01-01", constants={}, facts={"text": "x" * 500}
    )
    save_description(machine, folder / "machine.yaml")


def _shard(folder: Path) -> None:
    run = _run(folder)
    shutil.rmtree(folder / "nodes", ignore_errors=True)  # every session has folders of its own
    write_shard(shard_of(run, run.header.cells, MeasureSpec(), mixed=False), folder / "nodes" / "0-a")


def _logits(folder: Path) -> None:
    SavedLogits(label="base", cell="abc", logits=np.zeros((6, 50), np.float32)).save(folder / "logits.npz")


def _gguf(folder: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")
    model = replace(MODEL, config=MODEL.config | {"norm_topk_prob": True})
    export_gguf(model, folder / "model.gguf", experts="Q8_0", dense="BF16", say=lambda line: None)


def _set_up(folder: Path) -> None:
    bootstrap._write(folder / bootstrap.STAMP, "state" * 100)


def _changes(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(open_run, "read_changes", lambda: "+a line\n" * 1000)
        open_run._keep_changes(folder, "code")


def _joined(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(joined, "joined_lines", lambda _: [])
        patched.setattr(joined, "_conditions", lambda _: [])
        patched.setattr(joined, "joined_markdown", lambda _: "| arm |\n" * 1000)
        joined.write_joined(SimpleNamespace(alone=[]), folder, "joined-other")  # type: ignore[arg-type]


def _records(folder: Path) -> object:
    return read_run(folder / "quiet").records


def _known(folder: Path) -> object:
    """Whether every answer is one that was given; those that the disk took before it was full count."""
    return {*AnswerCache(folder, "answers")._known.values()} <= {ANSWER}


WRITERS = (
    Writer(module="results/log.py", file="new/log.jsonl", write=_begin),
    Writer(module="results/log.py", file="quiet/log.jsonl", write=_append, reads=_records),
    Writer(module="results/log.py", file=f"new/{PLAN_NAME}", write=_copy, needed=False),
    Writer(module="results/find.py", file=".latest", write=lambda folder: note_latest(folder / "quiet"), needed=False),
    *(
        Writer(module="report/write.py", file=f"quiet/report/{name}", write=partial(_report, form))
        for form, name in (("md", "table.md"), ("csv", "table.csv"), ("json", "table.json"), ("tex", "table.tex"))
    ),
    Writer(module="report/write.py", file="quiet/report/page.html", write=partial(_report, "html")),
    Writer(module="report/paper_bundle.py", file="quiet/report/kit/table.tex", write=partial(_report, "kit")),
    Writer(
        module="report/exchange/artifact.py",
        file="artifact.zip",
        write=lambda at: write_artifact(at / "artifact.zip", _run(at), (), ()),
    ),
    Writer(module="report/figures/output.py", file="quiet/report/figure.pdf", write=partial(_report, "figure")),
    Writer(module="report/joined.py", file="joined-other.md", write=_joined),
    Writer(module="report/comparison_table.py", file="quiet/report/compare-quiet.md", write=_compare),
    Writer(module="engine/gguf/export.py", file="model.gguf", write=_gguf),
    Writer(module="engine/loading/packed_folder.py", file="linear-bf16/0.packed", write=_packed),
    Writer(module="engine/loading/packed_folder.py", file="linear-bf16/manifest.json", write=_manifest),
    Writer(module="engine/serving/page_folder.py", file=f"{'0' * 32}.page", write=_page),
    Writer(module="engine/workload/recorded.py", file="profile.npz", write=_profile),
    Writer(module="eval/drift.py", file="reference.bin", write=_reference),
    Writer(module="eval/lm/cache.py", file="answers.jsonl", write=_answers, reads=_known),
    Writer(module="eval/lm/samples.py", file="samples.jsonl", write=_samples),
    Writer(module="host/crossovers.py", file="crossovers.json", write=_crossovers, needed=False),
    Writer(module="host/describe.py", file="machine.yaml", write=_machine),
    Writer(module="run/open_run.py", file="changes-code.diff", write=_changes, needed=False),
    Writer(module="run/agreement.py", file="logits.npz", write=_logits),
    Writer(module="run/cluster/shards.py", file="nodes/0-a/share.json", write=_shard),
    Writer(module="cli/advise.py", file="box.yaml", write=_advice),
    Writer(module="api/result.py", file="rows.parquet", write=_parquet),
    Writer(module="cli/trace.py", file="runs/seen/trace.json", write=_trace),
    Writer(module="cli/validate.py", file="validation.md", write=_validate),
    Writer(module="../bootstrap.py", file=bootstrap.STAMP, write=_set_up),
)
# What opens files to write them and keeps nothing in them that anybody reads again.
OTHERS = {
    "files.py": "writes for all of the above",
    "cli/__init__.py": "/dev/null",
    "cli/streams.py": "standard streams",
    "eval/sandbox/jail.py": "names the flags that a program may not open files with",
    "eval/sandbox/running.py": "files in memory",
    "host/timing_lock.py": "a lock in memory, whose note is for others to read",
    "host/watch.py": "a switch of the kernel",
    "run/eval_process.py": "a pipe",
    "run/cluster/shard_job.py": "what a process prints",
    "run/worker.py": "what a process prints",
    "run/worker_process.py": "a pipe",
}


def what_is_said(write: Callable[[Path], object], folder: Path, nbytes: int) -> str:
    """What a writer raises where files may have so many bytes, as the command line says it; empty where nothing."""
    try:
        with redirect_stdout(StringIO()), files_up_to(nbytes):  # pytest has it in a file
            write(folder)
    except (OSError, RequestError, Unsupported) as error:
        return error_text(error)
    return ""


@pytest.mark.parametrize("writer", WRITERS, ids=lambda one: one.file)
def test_a_full_disk_is_said_with_the_file_and_leaves_no_half_of_it(tmp_path: Path, writer: Writer) -> None:
    file = tmp_path / writer.file
    _run(tmp_path)
    before = writer.reads(tmp_path) if writer.reads else None
    said = what_is_said(writer.write, tmp_path, ROOM_BYTES + (file.stat().st_size if file.exists() else 0))
    assert said.count("\n") == 0 and bool(said) == writer.needed
    if writer.needed:
        assert file.name in said and "File too large" in said
    if writer.reads:
        assert writer.reads(tmp_path) == before
    else:
        assert not file.exists()
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part") or ".partial-" in path.name]
    writer.write(tmp_path)  # once there is room
    assert file.stat().st_size > ROOM_BYTES or not writer.needed


def test_no_writer_is_forgotten() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if _writes(ast.parse(path.read_text()))}
    assert found == {writer.module for writer in WRITERS if "bootstrap" not in writer.module} | OTHERS.keys()


def _writes(module: ast.Module) -> bool:
    """Whether any of the code opens a file to write it, or calls what does."""
    return any(_is_writing(node) for node in ast.walk(module))


_WRITING = {
    "append_to",
    "whole_file",
    "write_whole",
    "write_text",
    "write_bytes",
    "savez",
    "savez_compressed",
    "save_file",
    "fdopen",
}
_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND"}


def _is_writing(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in _FLAGS:
        return True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    modes = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return name in _WRITING or (name == "open" and any({*mode} & {*"wax+"} for mode in modes if len(mode) <= 3))
