"""A conversation in a terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ktbench.engine.serving.requests import Sampling, ServeRequest, ServingEngine
from ktbench.serve.answer import Answer
from ktbench.serve.settings import ChatSettings
from ktbench.serve.tokens import TextTokens

HELP = "/reset forgets the conversation, /exit ends it; Ctrl-C stops an answer"


class Terminal:
    """Reads messages, None at the end, and writes answers as they come. The thread that calls it drives the engine."""

    def __init__(
        self,
        engine: ServingEngine,
        tokens: TextTokens,
        settings: ChatSettings,
        read: Callable[[], str | None],
        write: Callable[[str], None],
    ) -> None:
        self._engine, self._tokens, self._settings = engine, tokens, settings
        self._read, self._write = read, write
        self._messages: list[dict[str, str]] = []
        self._number = 0
        self._reset()

    def run(self) -> None:
        """Until /exit or the end of the input. Raises EngineFailed where the engine ends an answer."""
        self._write(f"{HELP}\n")
        while (line := self._read()) is not None:
            word = line.strip()
            if word == "/exit":
                return
            if word == "/reset":
                self._reset()
            elif word.startswith("/"):
                self._write(f"{word}: unknown command; {HELP}\n")
            elif word:
                self._converse(line)

    def _reset(self) -> None:
        system = self._settings.system
        self._messages = [] if system is None else [{"role": "system", "content": system}]

    def _converse(self, line: str) -> None:
        """Answer a message; one that cannot be answered is forgotten."""
        messages = [*self._messages, {"role": "user", "content": line}]
        try:
            request = self._request(messages)
        except ValueError as error:
            self._write(f"{error}\n")
            return
        self._messages = [*messages, {"role": "assistant", "content": self._answer(request)}]
        self._write("\n")

    def _request(self, messages: list[dict[str, str]]) -> ServeRequest:
        """Raises ValueError where the template refuses the messages, or they leave no room for an answer."""
        prompt, settings = self._tokens.chat(messages), self._settings
        room = self._engine.max_positions - len(prompt)
        if room < 1:
            raise ValueError(f"the conversation has {len(prompt)} tokens, which leaves no room for an answer: /reset")
        self._number += 1
        return ServeRequest(
            key=f"chat/{self._number}",
            prompt=prompt,
            max_new=min(room, settings.max_tokens),
            sampling=Sampling(
                temperature=settings.temperature,
                top_p=settings.top_p,
                repetition_penalty=settings.repetition_penalty,
                seed=settings.seed + self._number,
            ),
            stop_ids=self._tokens.stop_ids,
        )

    def _answer(self, request: ServeRequest) -> str:
        """The text of the answer, or of its beginning where it was stopped."""
        answer, text = Answer(self._tokens, prompt=request.prompt), ""
        self._engine.submit(request)
        with _interrupts() as stopped:
            while not stopped.is_set():
                for event in self._engine.step():
                    delta = answer.add(event)
                    self._write(delta.text)
                    text += delta.text
                    if delta.finish is not None:
                        return text
            self._engine.cancel(request.key)
        return text


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Inside, Ctrl-C sets the event instead of raising, which could happen in the middle of a step."""
    stopped = threading.Event()
    before = signal.signal(signal.SIGINT, lambda number, frame: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
