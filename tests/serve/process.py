"""A server of the fake engine in a process of its own: `python -m tests.serve.process PORT DELAY_S`."""

from __future__ import annotations

import sys

from ktbench.serve.server import Served, serve
from ktbench.serve.settings import ServerSettings, bind
from ktbench.serve.tokens import TextTokens
from tests.serve.fake import VOCAB, FakeEngine


def main(port: int, delay_s: float) -> None:
    settings = ServerSettings(port=port, drain_s=1)
    engine = FakeEngine(delay_s=delay_s)
    served = Served(
        model="nano",
        tokens=TextTokens.open("evals/nano"),
        vocab=VOCAB,
        most_waiting=engine.most_waiting,
        open_engine=lambda: engine,
        ready=lambda url: print(url, flush=True),
    )
    serve(served, settings, None, bind(settings))
    print(f"closed={engine.closed}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
