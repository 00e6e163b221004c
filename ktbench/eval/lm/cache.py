"""Answers kept between runs: one file for each way to compute them, a line for each answer."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ktbench.engine.loading.weights_id import content_digest, weights_id
from ktbench.files import NotWritten, append_to, write_all
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import to_plain

_LIBRARIES = ("torch", "numpy", "transformers", "tokenizers", "lm_eval")


class AnswerCache:
    """The answers of one identity, in `folder`/`identity`.jsonl, where they are appended.

    Answers are plain content; each line carries a digest of itself. A partial last line from an interrupted run, and
    damaged lines, are ignored.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.path = folder / f"{identity}.jsonl"
        self._known = dict(_read(self.path))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Any:
        """The answer to the request with this `request_key`; None if there is none yet."""
        return self._known.get(key)

    def forget(self) -> None:
        """Drop all answers: the engine that gave them did not run as specified."""
        self.path.unlink(missing_ok=True)
        self._known.clear()

    def put(self, answers: Mapping[str, Any]) -> None:
        """Keep answers by key: they are on disk when this returns. Concurrent runs lock the file. Raises NotWritten."""
        marked = ([key, answer, content_digest([key, answer])] for key, answer in answers.items())
        lines = "".join(f"{json.dumps(line)}\n" for line in marked)
        try:
            self._append(lines.encode())
        except OSError as error:
            raise NotWritten.of(self.path, error) from None
        self._known |= answers

    def _append(self, lines: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with append_to(self.path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            write_all(file, (b"" if _ends_whole(self.path) else b"\n") + lines)


def request_key(*content: Any) -> str:
    """Digest of a request: plain content."""
    return content_digest(content)


def identity_of(spec: RunSpec, *, code_id: str, tokenizer: PreTrainedTokenizerBase, setting: str = "") -> str:
    """Digest of everything that answers may depend on besides the request.

    That is the weights, every engine setting, both precisions, the injection rules, the code with its kernels, the
    libraries that compute, sample tokens and cut answers, the tokenizer, and whatever else `setting` names.
    """
    content = to_plain(spec)
    kept = {key: content[key] for key in ("system", "engine", "precision", "device_precision", "inject")}
    libraries = [version(name) for name in _LIBRARIES]
    return content_digest([kept, weights_id(spec.model), code_id, _tokenizer_id(tokenizer), libraries, setting])


def _tokenizer_id(tokenizer: PreTrainedTokenizerBase) -> str:
    """Its behaviour: its rules if accessible, else its vocabulary; special tokens, chat template, decoding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str()
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    tidies = tokenizer.clean_up_tokenization_spaces
    return content_digest([type(tokenizer).__name__, rules, special, tokenizer.chat_template, tidies])


def _read(path: Path) -> Iterable[tuple[str, Any]]:
    if not path.is_file():
        return
    for line in path.read_bytes().split(b"\n"):
        try:
            key, answer, mark = json.loads(line)
        except (ValueError, TypeError, RecursionError):  # damaged, or not three items
            continue
        if mark == content_digest([key, answer]):
            yield key, answer


def _ends_whole(path: Path) -> bool:
    """Whether the last line is complete, so that another can be appended."""
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return True
        file.seek(-1, 2)
        return file.read() == b"\n"
