"""GuideLLM, a load generator that others wrote, in full against `ktbench serve model=nano`: nox -s load_generator."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ktbench.resources import checkout
from tests.faults.clients import gauges, served

_INSTALLED = checkout() / ".nox" / "load_generator" / "bin" / "guidellm"
FOUND = shutil.which("guidellm") or (str(_INSTALLED) if _INSTALLED.is_file() else None)
REQUESTS, PROMPT, ANSWER, USERS = 24, 64, 16, 4
_LONGEST_S = 240.0


@pytest.mark.skipif(FOUND is None, reason="there is no guidellm: nox -s load_generator installs it")
def test_all_requests_of_a_run_are_answered_in_full(tmp_path: Path) -> None:
    with served(tmp_path / "server") as (port, _):
        report = tmp_path / "report.json"
        subprocess.run(command(port, report), check=True, cwd=tmp_path, timeout=_LONGEST_S)
        seen = gauges(port)
    (run,) = json.loads(report.read_text())["benchmarks"]
    totals = run["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0)
    answers = [one["output_metrics"]["text_tokens"] for one in run["requests"]["successful"]]
    assert answers == [ANSWER] * REQUESTS
    assert seen["cache_pages"] == seen["cache_pages_free"] + seen["cache_pages_cached"]


def command(port: int, report: Path) -> list[str]:
    """Some users at once, with prompts and answers of fixed lengths in the nano model's tokens."""
    assert FOUND is not None
    options = {
        "--backend": f"kind=openai_http,target=http://127.0.0.1:{port},request_format=/v1/completions",
        "--tokenizer": f"kind=huggingface_auto,model={checkout() / 'evals' / 'nano'}",
        "--data": f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}",
        "--profile": f"kind=concurrent,streams={USERS}",
        "--constraint": f"kind=max_requests,count={REQUESTS}",
        "--output": f"kind=json,path={report}",
    }
    return [FOUND, "run", *(word for option in options.items() for word in option)]
