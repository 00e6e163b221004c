"""Content identity: equal content, equal id, on any machine and in any process."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import to_wire


def digest(content: Any) -> str:
    """Twelve hex digits of the canonical JSON of plain content (dict, list, str, int, float, bool, None)."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def spec_id(spec: RunSpec) -> str:
    """Identity of what was asked. Left out: labels of model and machine, how long to measure, where a peer is found."""
    content = to_wire(spec)
    del content["measure"]
    content["peer"] = content["peer"]["implementation"] if spec.system == "transformers" else None
    del content["model"]["name"]
    machine = content.pop("machine")
    if machine is not None:
        content["machine"] = {key: value for key, value in machine.items() if key not in ("name", "title", "sources")}
    return digest(content)
