"""Local text read into documents, documents cut into windows of tokens, and draws from either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

from ktbench.eval.tasks.harness import TextDocument, hub_rows
from ktbench.eval.tasks.nano import questions
from ktbench.eval.tasks.nano_questions import STOP

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HUB = ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1")
_FILES = ("test.txt", "wiki.test.raw", "wiki.test.tokens")
_FOLDERS = (".", "wikitext2", "wikitext-2-raw", "wikitext-2")
_UNKNOWN_WORD = "<unk>"
_QUESTIONS_A_TASK = 40

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Documents and their description for a caption."""

    title: str
    documents: tuple[TextDocument, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Tokens of one document: those given before the first prediction, and those to be predicted.

    `document` is the name of the document, shared with its other windows.
    """

    question: str
    document: str = ""
    prompt: tuple[int, ...]
    given: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """Windows of a text; the documents named in `short` had too few tokens for one."""

    rows: tuple[Window, ...]
    short: tuple[str, ...] = ()


def wikitext2(data_dir: str | None) -> Corpus:
    """The test set of WikiText-2 (Merity et al., 2016) in the documents of lm-eval's task `wikitext`.

    `data_dir` contains test.txt, wiki.test.raw or wiki.test.tokens, directly or in a folder `wikitext2`,
    `wikitext-2-raw` or `wikitext-2`; None loads from the hub. Raises ValueError if there is none, and with file and
    line for text that is not UTF-8.
    """
    if data_dir is None:
        pages = tuple(row["page"] for row in hub_rows(*_HUB)["test"])
    else:
        pages = tuple(_pages(_read(_wikitext2_file(data_dir))))
    if not pages:
        raise ValueError(f"data_dir={data_dir}: WikiText-2 has no text here")
    known = f"words not in its vocabulary are {_UNKNOWN_WORD}"
    words = known if any(_UNKNOWN_WORD in page for page in pages) else "raw"
    documents = tuple(TextDocument(name=f"wikitext2/{index:03d}", text=page) for index, page in enumerate(pages))
    return Corpus(title=f"WikiText-2 test ({words})", documents=documents)


def _wikitext2_file(data_dir: str) -> Path:
    for folder in _FOLDERS:
        for name in _FILES:
            if (path := Path(data_dir) / folder / name).is_file():
                return path
    raise ValueError(
        f"data_dir={data_dir}: no WikiText-2 here; looked for {', '.join(_FILES)}, also in {', '.join(_FOLDERS[1:])}"
    )


def _read(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: is not UTF-8 text") from None


def _pages(text: str) -> Iterator[str]:
    """Texts from one title ` = Title = ` to the next, by the rule that made the data set on the hub.

    It mistakes two formulas in the test set for titles: 62 documents for 60 articles.
    """
    page: list[str] = []
    for line in text.split("\n"):
        if _is_title(line):
            if any(map(str.strip, page)):
                yield "\n".join(page)
            page = []
        page.append(line)
    if any(map(str.strip, page)):
        yield "\n".join(page)


def _is_title(line: str) -> bool:
    """Whether a line is a heading of level one; deeper ones have several `=` on each side."""
    closed = line.replace("= = =", "===").replace("= =", "==").strip()
    return closed.startswith("= ") and closed.endswith(" =")


def nano_answers() -> Corpus:
    """Questions of the nano model's tasks, to be continued with the right answers: plain ASCII.

    The nano model has learned to predict only answers, not the questions before them.
    """
    documents = tuple(
        TextDocument(
            name=f"nano/{question.task}/{index % _QUESTIONS_A_TASK}",
            text=question.prompt,
            continuation=f"{question.answer}{STOP}",
        )
        for index, question in enumerate(questions(_QUESTIONS_A_TASK))
    )
    return Corpus(title="right answers to questions of the nano model's tasks", documents=documents)


def drift_texts(data_dir: str | None) -> Corpus:
    """The texts that a drift suite predicts: WikiText-2 if a folder is named, else the shipped ones."""
    return nano_answers() if data_dir is None else wikitext2(data_dir)


def require_known(tokens: Iterable[int], vocab: int) -> None:
    """Raises ValueError for a token outside a vocabulary of this size."""
    if (beyond := next((token for token in tokens if not 0 <= token < vocab), None)) is not None:
        raise ValueError(f"token {beyond} of the tokenizer is none of the {vocab} that the model knows")


def draw_sample(items: Sequence[T], limit: int | None, seed: int) -> tuple[T, ...]:
    """`limit` of the items, chosen with `seed`, in their order; all if the limit is None or not smaller."""
    if limit is None or limit >= len(items):
        return tuple(items)
    return tuple(items[index] for index in sorted(Random(seed).sample(range(len(items)), limit)))


def cut_windows(
    documents: Sequence[TextDocument], tokenizer: PreTrainedTokenizerBase, prompt: int, given: int
) -> Windows:
    """Windows of `prompt` and `given` tokens, end to end through each text; the rest at its end is dropped.

    A document with a continuation is one window of any length, with at least two prompt tokens. Every prompt begins
    with the begin-of-text token if the tokenizer has one. Raises ValueError if no document is long enough.
    """
    cut = {document.name: _windows(document, tokenizer, prompt, given) for document in documents}
    if not any(cut.values()):
        raise ValueError(f"no text has the {prompt + given} tokens of a window: give longer texts, or smaller windows")
    rows = tuple(window for windows in cut.values() for window in windows)
    return Windows(rows=rows, short=tuple(name for name, windows in cut.items() if not windows))


def _windows(document: TextDocument, tokenizer: PreTrainedTokenizerBase, prompt: int, given: int) -> list[Window]:
    begin = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
    tokens = (*begin, *tokenizer.encode(document.text, add_special_tokens=False))
    if document.continuation:
        answer = tokenizer.encode(document.continuation, add_special_tokens=False)
        return [Window(question=document.name, prompt=tokens, given=tuple(answer))] if len(tokens) > 1 else []
    step, text = prompt + given - len(begin), tokens[len(begin) :]
    return [
        Window(
            question=f"{document.name}/{at}",
            document=document.name,
            prompt=(*begin, *text[at : at + step - given]),
            given=text[at + step - given : at + step],
        )
        for at in range(0, len(text) - step + 1, step)
    ]
