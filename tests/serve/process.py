"""A server of the fake engine in a process of its own: `python -m tests.serve.process PORT DELAY_S`."""

from __future__ import annotations

import sys

from ktbench.serve.server import Served, serve
from ktbench.serve.settings import ServerSettings, bind
from ktbench.serve.tokens import TextTokens
from tests.serve.fake import VOCAB, FakeEngine


class ByteTokens(TextTokens):
    """Bytes as tokens, without the libraries of a tokenizer, which take seconds to load."""

    def __init__(self) -> None:
        self.stop_ids = self.special_ids = frozenset[int]()
        self.defaults, self._longest = {}, 1
        self._pieces = tuple(bytes([one]) for one in range(256))

    def _ids(self, text: str, *, adds: bool) -> tuple[int, ...]:
        return tuple(text.encode())

    def encode(self, text: str) -> tuple[int, ...]:
        return self._ids(text, adds=True)


def main(port: int, delay_s: float) -> None:
    settings = ServerSettings(port=port, drain_s=1)
    engine = FakeEngine(delay_s=delay_s)
    served = Served(
        model="nano",
        tokens=ByteTokens(),
        vocab=VOCAB,
        most_waiting=engine.most_waiting,
        open_engine=lambda: engine,
        ready=lambda url: print(url, flush=True),
    )
    serve(served, settings, None, bind(settings))
    print(f"closed={engine.closed}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
