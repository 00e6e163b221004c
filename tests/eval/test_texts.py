"""Texts read, cut into documents and windows, and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.eval.tasks.harness import TextDocument, hub_rows
from ktbench.eval.texts import cut_windows, draw_sample, nano_answers, wikitext2
from tests.eval.conftest import SHARED, ByteTokenizer, needs_shared_data

LINES = (
    "",
    "= First =",
    "",
    "Some words .",
    "",
    "= = A section = =",
    "",
    "More = words = here .",
    "= = = Deeper = = =",
    "Q = Qualified for the next round",
    "",
    "= Second ( film ) =",
    "",
    "Its text .",
)
TEXT = "".join(f" {line} \n" if line else " \n" for line in LINES)


def written(folder: Path, content: str | bytes, name: str = "test.txt") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder)


def test_only_titles_of_level_one_begin_a_document(tmp_path: Path) -> None:
    corpus = wikitext2(written(tmp_path, TEXT))
    assert [one.name for one in corpus.documents] == ["wikitext2/000", "wikitext2/001"]
    first, second = (one.text for one in corpus.documents)
    assert first + "\n" + second == TEXT[2:]
    assert second.startswith(" = Second ( film ) = \n")
    assert corpus.title == "WikiText-2 test (raw)"


def test_text_before_the_first_title_is_kept_and_line_ends_are_alike(tmp_path: Path) -> None:
    corpus = wikitext2(written(tmp_path, TEXT.replace(" \n", "Before .\n", 1).replace("\n", "\r\n")))
    assert [one.text.split("\n")[0] for one in corpus.documents] == ["Before .", " = First = ", " = Second ( film ) = "]
    assert not any("\r" in one.text for one in corpus.documents)


@pytest.mark.parametrize("where", ["", "wikitext2", "wikitext-2-raw"])
@pytest.mark.parametrize("name", ["test.txt", "wiki.test.raw"])
def test_layouts(where: str, name: str, tmp_path: Path) -> None:
    written(tmp_path / where, TEXT.replace("words", "<unk>"), name)
    corpus = wikitext2(str(tmp_path))
    assert len(corpus.documents) == 2
    assert corpus.title == "WikiText-2 test (words not in its vocabulary are <unk>)"


def test_what_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no WikiText-2 here; looked for test.txt, wiki.test.raw, .* wikitext2, "):
        wikitext2(str(tmp_path))
    with pytest.raises(ValueError, match="WikiText-2 has no text here"):
        wikitext2(written(tmp_path, " \n \n"))
    with pytest.raises(ValueError, match=r"test\.txt:3: is not UTF-8 text"):
        wikitext2(written(tmp_path, b" = A = \n\n caf\xe9 .\n"))


def test_the_hub_is_read_where_no_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def load(*names: str) -> dict[str, list[dict[str, str]]]:
        assert names == ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1")
        return {"test": [{"page": " = A = \n"}, {"page": " = B = \n"}]}

    def fail(*names: str) -> None:
        raise ConnectionError("Couldn't reach it")

    hub_rows.cache_clear()
    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ValueError, match=r"wikitext_document_level: cannot be loaded .* give data_dir=FOLDER"):
        wikitext2(None)
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert [one.text for one in wikitext2(None).documents] == [" = A = \n", " = B = \n"]
    hub_rows.cache_clear()


@needs_shared_data
@pytest.mark.parametrize("folder", [SHARED, SHARED / "wikitext2"])
def test_the_real_test_set(folder: Path) -> None:
    """The data set has 60 articles and 245,569 tokens, a mark at the end of each line being one."""
    documents = [one.text.split("\n") for one in wikitext2(str(folder)).documents]
    assert len(documents) == 62
    assert sum(not lines[1].strip() for lines in documents) == 60  # a blank follows a title, none the two formulas
    assert sum(len(line.split()) for lines in documents for line in lines) == 245_569 - 4_358
    assert documents[0][0] == " = Robert <unk> = "


def test_nano_answers_are_short_ascii_lines_after_their_questions() -> None:
    documents = nano_answers().documents
    assert len({one.name for one in documents}) == len(documents) == 12 * 40
    assert {one.name.split("/")[1] for one in documents[:40]} == {"brackets"}
    for one in documents:
        assert (one.text + one.continuation).isascii()
        assert one.continuation.endswith("\n") and one.continuation.count("\n") == 1


@given(st.lists(st.integers(), max_size=20), st.none() | st.integers(1, 25), st.integers(0, 99))
def test_what_is_drawn_keeps_its_order(items: list[int], limit: int | None, seed: int) -> None:
    rows = list(enumerate(items))
    found = draw_sample(rows, limit, seed)
    assert len(found) == min(len(rows), limit if limit is not None else len(rows))
    assert list(found) == sorted(set(found)) and set(found) <= set(rows)
    assert found == draw_sample(rows, limit, seed)


def test_seeds_draw_differently() -> None:
    assert draw_sample(range(1000), 10, 0) != draw_sample(range(1000), 10, 1)


@settings(max_examples=40)
@given(st.text(alphabet="abc", max_size=60), st.integers(2, 8), st.integers(1, 8), st.sampled_from([None, 7]))
def test_windows_go_end_to_end_through_a_text(text: str, prompt: int, answer: int, bos: int | None) -> None:
    long = TextDocument(name="long", text="x" * 16)
    found = cut_windows([TextDocument(name="text", text=text), long], ByteTokenizer(bos), prompt, answer)
    rows = [row for row in found.rows if row.question.startswith("text/")]
    assert all((len(row.prompt), len(row.given)) == (prompt, answer) for row in rows)
    begin = 0 if bos is None else 1
    assert all(row.prompt[:begin] == (7,) * begin for row in rows)
    covered = [token for row in rows for token in (*row.prompt[begin:], *row.given)]
    step = prompt + answer - begin
    assert covered == [ord(letter) for letter in text][: len(text) // step * step]
    assert found.short == (() if rows else ("text",))
    starts = [f"text/{at}" for at in range(0, len(covered), step)]
    assert [row.question for row in rows] == starts


def test_a_continuation_is_what_is_predicted() -> None:
    documents = [
        TextDocument(name="a", text="1+1=", continuation="2\n"),
        TextDocument(name="b", text="", continuation="no prompt"),
    ]
    found = cut_windows(documents, ByteTokenizer(7), 64, 64)
    (row,) = found.rows
    assert (row.question, row.prompt, row.given) == ("a", (7, *b"1+1="), tuple(b"2\n"))
    assert found.short == ("b",)


def test_texts_that_are_all_too_short_are_refused() -> None:
    with pytest.raises(ValueError, match="no text has the 128 tokens of a window"):
        cut_windows([TextDocument(name="a", text="short")], ByteTokenizer(), 64, 64)
