"""`serve`: the engine of one cell behind an OpenAI-compatible API."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ktbench.cli.keys import take_arguments
from ktbench.resources import checkpoint_name, install_command
from ktbench.run.progress import loading_line, say, warn
from ktbench.run.serving.opening import (
    best_serving_spec,
    features_said,
    not_served,
    open_here,
    prepare_process,
    require_free_cache,
)
from ktbench.serve.settings import ServerSettings, bind, read_api_key
from ktbench.spec.errors import FAILED, RequestError
from ktbench.spec.run_spec import RunSpec

_NEEDS = ("prometheus_client", "starlette", "uvicorn")


def run(overrides: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM, then end with exit code 0. Raises RequestError before anything loads."""
    words, settings = take_arguments("serve", overrides, ServerSettings, "serve.")
    if missing := [name for name in _NEEDS if find_spec(name) is None]:
        raise RequestError(f"serve: {' and '.join(missing)} not installed: {install_command('serve')}")
    api_key = read_api_key(settings.api_key)
    spec, unsupported = best_serving_spec("serve", words)
    require_free_cache(spec)
    if not unsupported:
        prepare_process(spec)  # imports PyTorch, as the following do
        unsupported = not_served(spec)
    if unsupported:
        warn(f"ktbench serve: UNSUPPORTED: {unsupported}")
        return FAILED
    bound = bind(settings)
    if api_key is None and not settings.is_local:
        warn(f"serve: {settings.host} is reached from other machines and no key is asked for (serve.api_key)")
    return _serve(spec, settings, api_key, bound)


def _serve(spec: RunSpec, settings: ServerSettings, api_key: bytes | None, bound: socket.socket) -> int:
    from ktbench.serve.server import Served, serve
    from ktbench.serve.tokens import TextTokens

    path = str(spec.model.path)
    tokens = TextTokens.open(path)
    say(f"loading {spec.model.name} in {spec.precision}, {features_said('serve', spec)}")
    with loading_line() as show:
        served = Served(
            model=Path(checkpoint_name(path)).name,
            tokens=tokens,
            vocab=spec.model.shape.vocab,
            most_waiting=spec.engine.serving.max_waiting,
            open_engine=lambda: open_here(spec, show),
            ready=lambda url: print(f"serving {url}", flush=True),
        )
        serve(served, settings, api_key, bound)
    return 0
