"""`chat`: a conversation with the engine of one cell, in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from ktbench.cli.keys import take_arguments
from ktbench.run.progress import loading_line, say, warn
from ktbench.run.serving.opening import (
    best_serving_spec,
    features_said,
    not_served,
    open_here,
    prepare_process,
    require_free_cache,
)
from ktbench.serve.settings import ChatSettings
from ktbench.spec.errors import FAILED, RequestError
from ktbench.spec.run_spec import RunSpec

_PROMPT = "> "


def run(overrides: Sequence[str]) -> int:
    """Talk until /exit or the end of the input. Raises RequestError before anything loads."""
    words, settings = take_arguments("chat", overrides, ChatSettings, "chat.")
    spec, unsupported = best_serving_spec("chat", words)
    require_free_cache(spec)
    if not unsupported:
        prepare_process(spec)  # imports PyTorch, as the following do
        unsupported = not_served(spec)
    if unsupported:
        warn(f"ktbench chat: UNSUPPORTED: {unsupported}")
        return FAILED
    return _chat(spec, settings)


def _chat(spec: RunSpec, settings: ChatSettings) -> int:
    from ktbench.serve.answer import EngineFailed
    from ktbench.serve.terminal import Terminal
    from ktbench.serve.tokens import TextTokens

    path = str(spec.model.path)
    tokens = TextTokens.open(path)
    if not tokens.has_chat:
        raise RequestError(f"model.path={path}: its tokenizer has no chat template")
    say(f"loading {spec.model.name} in {spec.precision}, {features_said('chat', spec)}")
    with loading_line() as show:
        engine = open_here(spec, show)
    try:
        Terminal(engine, tokens, settings, _read, _write).run()
    except EngineFailed as error:
        warn(f"ktbench chat: the engine ended the answer: {error}")
        return FAILED
    finally:
        engine.close()
    return 0


def _read() -> str | None:
    """A line, which can be edited in a terminal; None at the end of the input."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401 - has `input` edit lines and remember them
    try:
        return input(_PROMPT if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _write(text: str) -> None:
    print(text, end="", flush=True)
