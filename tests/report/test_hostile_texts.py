"""Names that try to leave their place: a comment, a table, a shell block, a cell; and long ones in figures."""

from __future__ import annotations

import csv
import io
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.report.data import csv_of
from ktbench.report.figures.style import width_in, wrapped
from ktbench.report.latex import escaped
from ktbench.report.markdown import grid
from ktbench.report.template import render
from ktbench.report.write import write_report
from ktbench.results.command import shell_line
from ktbench.spec.errors import printable
from tests.report.synthetic import Store

HOSTILE = "a\n\\input{/etc/passwd}\n```\n<script>\x1b[2J"


def test_a_newline_does_not_end_a_comment_of_latex() -> None:
    text = render(
        "conditions.tex.j2", tex=escaped, common=(HOSTILE,), documents=[(HOSTILE, [HOSTILE], [(HOSTILE, HOSTILE)])]
    )
    live = [line for line in text.splitlines() if not line.startswith("%")]
    assert not any("\\input" in line.replace("\\textbackslash{}input", "") for line in live)
    assert "\x1b" not in text and sum(line.startswith("% ") for line in text.splitlines()) == 1


@pytest.mark.parametrize("kind", ["md", "html"])
def test_no_document_has_control_characters(tmp_path: Path, kind: str) -> None:
    """A terminal obeys those of a table that it shows; of a log from elsewhere any title may have some."""
    run = Store(title="breakdown \x1b]0;owned\x07\x9b2J").write(tmp_path)
    texts = [file.read_text(encoding="utf-8") for file in write_report(run, [kind]) if file.suffix == f".{kind}"]
    assert texts and all("\\x1b]0;owned" in text for text in texts)
    assert not any(character in text for text in texts for character in "\x1b\x07\x9b")


def test_a_cell_of_markdown_is_one_line() -> None:
    lines = grid([["heading", "x"], [HOSTILE, "a|b"]], [False, False])
    assert len(lines) == 3 and all("\n" not in line and line.isprintable() for line in lines)


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "\t=1", "\r=1", "\x1b=1", "plain", "+v+d", "-1.5", "a=b"])
def test_no_cell_of_csv_is_a_formula(text: str) -> None:
    content = csv_of([{"name": text, "value": -1.5}])
    _, (read, number) = csv.reader(io.StringIO(content))
    assert read.lstrip("'") == printable(text) and number == "-1.5"
    assert not read.startswith(("=", "@", "\t", "\r", "\x1b"))
    assert read == printable(text) or text.startswith(("=", "@", "\t"))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), min_size=1, max_size=4))
def test_a_command_is_one_line_that_a_shell_reads_back(words: list[str]) -> None:
    line = shell_line(words)
    assert line.isprintable()
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words


@pytest.mark.parametrize("text", ["W W", "W", "", "a b c", "W" * 50, "/some/path" * 100, "i" * 1000])
@pytest.mark.parametrize("limit_in", [0.01, 0.5, 3.0])
def test_text_is_broken_where_it_must_and_loses_no_letter(text: str, limit_in: float) -> None:
    began_s = time.process_time()
    lines = wrapped(text, 6, limit_in)
    assert time.process_time() - began_s < 20  # it took minutes
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(len(line) == 1 or width_in(line, 6) <= limit_in for line in lines)
