"""Arms of a sweep: the words of a label, read as what they change in a spec."""

from __future__ import annotations

from typing import get_args

from ktbench.spec.features import BY_NAME, FeatureValue, parse_features
from ktbench.spec.peers import IMPLEMENTATIONS, PEERS
from ktbench.spec.weights import Precision

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def arm_changes(arm: str) -> dict[str, bool | int | str]:
    """Spec changes by dotted key of an arm such as `base`, `+v+d`, `+v int8`, `llama.cpp` or `transformers eager`.

    Every feature and the system are set, `precision` where it is named. Raises ValueError in one line for an unknown
    word, for a second precision, and for a precision that no operator of the arm would have.
    """
    precision = arm_precision(arm)
    changes: dict[str, bool | int | str] = {BY_NAME[name].key: value for name, value in arm_features(arm).items()}
    changes |= _system_changes(arm)
    return changes if precision is None else changes | {"precision": precision}


def _system_changes(arm: str) -> dict[str, str]:
    system = arm_peer(arm) or "ktbench"
    named = [word for word in arm.split() if word in IMPLEMENTATIONS]
    if len(named) > (system == "transformers"):
        raise ValueError(f"arm {arm!r}: {named[-1]} goes with transformers, once")
    return {"system": system} | ({"peer.implementation": named[0]} if named else {})


def arm_peer(arm: str) -> str | None:
    """The peer that an arm names; None for our own engine. Raises ValueError where it names two."""
    names = {peer.name for peer in PEERS}
    named = [word for word in arm.split() if word in names]
    if len(named) > 1:
        raise ValueError(f"arm {arm!r}: names {len(named)} systems, allowed is one")
    return named[0] if named else None


def arm_features(arm: str) -> dict[str, FeatureValue]:
    """Feature values of an arm by feature name. Raises ValueError naming the unknown word and the allowed ones."""
    peers = {peer.name for peer in PEERS}
    words = " ".join(word for word in arm.split() if word not in {*PRECISIONS, *peers, *IMPLEMENTATIONS})
    if words and arm_peer(arm):
        raise ValueError(f"arm {arm!r}: {arm_peer(arm)} has none of our features, leave out {words}")
    try:
        return parse_features(words)
    except ValueError as error:
        raise ValueError(f"arm {arm!r}: {error}, one of {', '.join((*PRECISIONS, *sorted(peers)))}") from None


def arm_precision(arm: str) -> Precision | None:
    """The precision that an arm names; None where it leaves that to the spec. Raises ValueError as `arm_changes`."""
    named = [precision for word in arm.split() for precision in PRECISIONS if word == precision]
    if len(named) > 1:
        raise ValueError(f"arm {arm!r}: names {len(named)} precisions, allowed is one")
    features = arm_features(arm)
    if named and named[0] != "bf16" and not (features["avx512"] or features["amx"] or arm_peer(arm)):
        raise ValueError(f"arm {arm!r}: {named[0]} needs +v or +m, without them the experts run in bf16")
    return named[0] if named else None
