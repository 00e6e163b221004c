"""YAML that requests name, and that ships and was changed: machines, rules, prices, ablations, suites, presets."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from ktbench.resources import data_folder
from tests.fuzz.child import ktbench
from tests.fuzz.words import all_changed, changes

_ROOT = Path(__file__).parents[2]
# Each kind by the shipped file that is changed, where the changed one goes, and the command that names it.
_KINDS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "machine": ("conf/machine/paper_a100.yaml", "mine.yaml", ("run", "model=tiny", "machine=mine.yaml")),
    "rules": ("conf/inject/lean.yaml", "mine.yaml", ("plan", "model=tiny", "inject.file=mine.yaml")),
    "prices": (
        "conf/prices.example.yaml",
        "mine.yaml",
        ("plan", "model=tiny", "what_if=mine.yaml", "what_if.target=9"),
    ),
    "ablation": ("ablations/decode.yaml", "ablations/mine.yaml", ("plan", "+ablation=mine", "model=tiny")),
    "suite": ("evals/nano.yaml", "evals/mine.yaml", ("plan", "+suite=mine", "limit=1")),
    "model": ("conf/model/tiny.yaml", "conf/model/mine.yaml", ("plan", "model=mine")),
    "workload": ("conf/workload/decode.yaml", "conf/workload/mine.yaml", ("plan", "model=tiny", "workload=mine")),
    "preset": ("conf/machine/paper_a100.yaml", "conf/machine/mine.yaml", ("run", "model=tiny", "machine=mine")),
}
_PIECES = (
    *(
        "&a ",
        "*a",
        "!!python/object:os.system ",
        "!!binary ",
        "!!set ",
        "? ",
        "- ",
        "| ",
        "> ",
        "<<: *a",
        "{",
        "}",
        "[",
    ),
    *("]", "\t", "\n", "---\n", "...\n", "%YAML 9.9\n", "#", ": ", '"\\ud800"', "\x00", "\ufeff", "'", '"', "${a}"),
    *("${oc.env:HOME}", "1e999", ".nan", "0b2", "1:99:99", "2026-13-45", "~", "=", "@", "`", "9" * 5000),
)


def _bomb(levels: int, width: int, merged: bool) -> str:
    first = "a0: &a0 {x: 1, y: 2}" if merged else "a0: &a0 [x, x, x]"
    lines = [first]
    for n in range(1, levels):
        inner = ", ".join([f"*a{n - 1}"] * width)
        lines.append(f"a{n}: &a{n} {{<<: [{inner}]}}" if merged else f"a{n}: &a{n} [{inner}]")
    return "\n".join(lines) + "\n"


def inputs() -> st.SearchStrategy[Any]:
    """A kind of file, and how it is changed: its content, its text, or all of it."""
    bombs = st.builds(_bomb, st.integers(2, 12), st.integers(1, 12), st.booleans())
    deep = st.tuples(st.sampled_from(["[", "{a: ", "- ", "? "]), st.sampled_from([40, 900, 20_000])).map(
        lambda found: found[0] * found[1]
    )
    large = st.sampled_from(["a: [" + "1, " * 60_000 + "]", "a: '" + "x" * 1_000_000 + "'", "# x\n" * 60_000])
    texts = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(_PIECES) | st.text(max_size=5)), max_size=4)
    change = st.one_of(
        st.fixed_dictionaries({"changes": changes()}),
        st.fixed_dictionaries({"changes": changes()}),
        st.fixed_dictionaries({"insert": texts.map(lambda found: [list(one) for one in found])}),
        st.fixed_dictionaries({"before": bombs}),
        st.fixed_dictionaries({"whole": bombs | deep | large | st.text(max_size=40)}),
    )
    return st.tuples(st.sampled_from(sorted(_KINDS)), change).map(lambda found: {"kind": found[0], **found[1]})


def carry_out(data: Any) -> int:
    """The command that names the file; then one that does not, which has to succeed."""
    source, to, command = _KINDS[data["kind"]]
    text = _changed((_ROOT / source).read_text(), data)
    _install()
    Path("install" if "/" in to else ".", to).write_text(text, errors="surrogatepass")
    code = ktbench(*command)
    if code in (0, 2) and ktbench("plan", "model=tiny") != 0:
        raise AssertionError("a file that nothing names makes another command fail")
    return code


def _changed(text: str, data: Any) -> str:
    if "whole" in data:
        return str(data["whole"])
    if "changes" in data:
        return yaml.safe_dump(all_changed(yaml.safe_load(text), data["changes"]), sort_keys=False, allow_unicode=True)
    for place, piece in data.get("insert", ()):
        at = place % (len(text) + 1)
        text = text[:at] + piece + text[at:]
    return str(data.get("before", "")) + text


def _install() -> None:
    """Data folders of an installation that one may write to."""
    from ktbench import resources
    from ktbench.config import options

    for name in ("conf", "ablations", "evals", "reports"):
        shutil.copytree(data_folder(name), Path("install", name), ignore=lambda folder, names: _large(names))
    resources._PACKAGE = Path("install", "none").absolute()
    options._read_option.cache_clear()


def _large(names: list[str]) -> list[str]:
    return [name for name in names if name in ("recorded", "nano", "validation")]
