"""How labels write and name features: `base`, `+v+d`, `+v deferral=3`."""

from __future__ import annotations

from collections.abc import Mapping

from ktbench.spec.features.record import Feature, FeatureValue, value_text
from ktbench.spec.features.table import BY_NAME, FEATURES

_BY_LETTER: Mapping[str, Feature] = {feature.letter: feature for feature in FEATURES if feature.letter}


def features_on(values: Mapping[str, FeatureValue]) -> dict[str, FeatureValue]:
    """Those of a setting that are on, by name; one that is not known here is on, a log may have it."""
    return {name: value for name, value in values.items() if name not in BY_NAME or value != BY_NAME[name].off}


def feature_tag(name: str, value: FeatureValue) -> str:
    """How labels write a feature that is on: by the name that a log has for it where it is not known here."""
    return BY_NAME[name].tag(value) if name in BY_NAME else f"{name}={value_text(value)}"


def features_label(values: Mapping[str, FeatureValue]) -> str:
    """Label of a feature setting, in its order: `base`, `+v+d`, `+v deferral=3`."""
    tags = [feature_tag(name, value) for name, value in features_on(values).items()]
    letters = "".join(tag for tag in tags if tag.startswith("+"))
    numbers = [tag for tag in tags if tag and not tag.startswith("+")]
    return " ".join(filter(None, [letters, *numbers])) or "base"


def parse_features(label: str) -> dict[str, FeatureValue]:
    """Feature values of a label such as `base`, `+v+d` or `+v+d deferral=3`.

    Raises ValueError naming the unknown part and the allowed ones.
    """
    values: dict[str, FeatureValue] = {feature.name: feature.off for feature in FEATURES}
    for word in label.split():
        if word == "base":
            continue
        for name, value in _parse_word(word).items():
            values[name] = value
    return values


def _parse_word(word: str) -> dict[str, FeatureValue]:
    if word.startswith("+"):
        return {_lettered(letter, word): True for letter in word[1:].split("+")}
    name, _, text = word.partition("=")
    feature = BY_NAME.get(name)
    if text.isdecimal() and (feature is None or not feature.valued):
        raise _unknown(name, word)
    try:
        if feature is not None and feature.valued:
            return {name: feature.parse(text)}
    except ValueError:
        pass
    raise ValueError(f"feature {word!r}: allowed are {allowed_features()}")


def _lettered(letter: str, word: str) -> str:
    if letter not in _BY_LETTER:
        raise _unknown(letter, word)
    return _BY_LETTER[letter].name


def _unknown(name: str, word: str) -> ValueError:
    return ValueError(f"feature {name!r} in {word!r}: allowed are {allowed_features()}")


def allowed_features() -> str:
    """The allowed words, for messages."""
    return ", ".join(feature.word for feature in FEATURES)
