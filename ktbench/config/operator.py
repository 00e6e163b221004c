"""Files of the user's own that a request names: an experts operator, and features, checked before anything loads."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from ktbench.config.compose import Composed
from ktbench.config.freeze import Request, RequestPart
from ktbench.resources import read_text
from ktbench.spec.features import BY_NAME, FEATURES, MOST_FILE_BYTES, register_file
from ktbench.spec.peers import IMPLEMENTATION_OWN, OPERATOR_CLASS
from ktbench.spec.wire import digest

_KEY = "peer.operator"
_FEATURES_KEY = "engine.own_file"


def with_own_features(composed: Composed) -> Composed:
    """The content, which knows the digest of the file that `engine.own_file` names; its features are in the table.

    Raises ValueError in one line for a file that cannot be read or fails, for several, and for an unknown feature.
    """
    return replace(composed, parts={name: _with_own_features(part) for name, part in composed.parts.items()})


def _with_own_features(content: dict[str, Any]) -> dict[str, Any]:
    engine, file, axes = content["engine"], content["engine"]["own_file"], content["sweep"]["axes"]
    if isinstance(axes, dict) and _FEATURES_KEY in axes:
        raise ValueError(f"{_FEATURES_KEY}: takes one file, run sweep once for each")
    if file is not None:
        text = read_text(str(file), f"{_FEATURES_KEY}={file}", MOST_FILE_BYTES)
        register_file(str(file))
        engine = engine | {"own_id": digest(text)}
    own = engine["own"] if isinstance(engine["own"], dict) else {}
    if unknown := next((name for name in own if name not in BY_NAME or not BY_NAME[name].is_own), None):
        known = ", ".join(feature.name for feature in FEATURES if feature.is_own) or "none, name a file with one"
        raise ValueError(f"engine.own.{unknown}: no such feature; allowed are {known} ({_FEATURES_KEY}=FILE.py)")
    for name, value in own.items():
        BY_NAME[name].require(value)
    return content | {"engine": engine}


def with_operator(request: Request) -> Request:
    """The request, whose specs know the content of the file that `peer.operator` names.

    Raises ValueError in one line for a file that cannot be read, is no Python, or lacks the class; and for several.
    """
    return replace(request, parts=tuple(map(_with_operator, request.parts)))


def _with_operator(part: RequestPart) -> RequestPart:
    if _KEY in part.sweep.axes:
        raise ValueError(f"{_KEY}: takes one file, run sweep once for each")
    peer = part.spec.peer
    if peer.operator is None:
        if any(IMPLEMENTATION_OWN in arm.split() for arm in part.sweep.arms):
            raise ValueError(
                f"sweep.arms: transformers {IMPLEMENTATION_OWN} runs a file of yours, name it with {_KEY}=FILE.py"
            )
        return part
    known = replace(peer, operator_id=_checked(peer.operator))
    return replace(part, spec=replace(part.spec, peer=known))


def _checked(file: str) -> str:
    """The digest of the content of a file."""
    where = f"{_KEY}={file}"
    text = read_text(file, where, MOST_FILE_BYTES)
    try:
        found = {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{where}: is no Python: {error}") from None
    if OPERATOR_CLASS not in found:
        raise ValueError(f"{where}: defines no class {OPERATOR_CLASS}, a torch.nn.Module (docs/howto/operator.md)")
    return digest(text)
