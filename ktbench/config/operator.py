"""The file of an experts operator of the user's own, checked before anything loads."""

from __future__ import annotations

import ast
from dataclasses import replace

from ktbench.config.freeze import Request, RequestPart
from ktbench.resources import read_text
from ktbench.spec.peers import OPERATOR_CLASS, OWN
from ktbench.spec.wire import digest

_KEY = "peer.operator"
_MOST_BYTES = 1 << 20


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
        if any(OWN in arm.split() for arm in part.sweep.arms):
            raise ValueError(f"sweep.arms: transformers {OWN} runs a file of yours, name it with {_KEY}=FILE.py")
        return part
    known = replace(peer, operator_id=_checked(peer.operator))
    return replace(part, spec=replace(part.spec, peer=known))


def _checked(file: str) -> str:
    """The digest of the content of a file."""
    where = f"{_KEY}={file}"
    text = read_text(file, where, _MOST_BYTES)
    try:
        found = {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{where}: is no Python: {error}") from None
    if OPERATOR_CLASS not in found:
        raise ValueError(f"{where}: defines no class {OPERATOR_CLASS}, a torch.nn.Module (docs/howto/operator.md)")
    return digest(text)
