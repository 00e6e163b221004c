"""The feature table: one row per optimisation, which holds all that the rest of the code asks of a toggle."""

from ktbench.spec.features.labels import allowed_features, feature_tag, features_label, features_on, parse_features
from ktbench.spec.features.outside import MOST_FILE_BYTES, plug_in, register, register_file
from ktbench.spec.features.record import PHASES, Best, Feature, FeatureValue, Phase, value_text
from ktbench.spec.features.table import BY_NAME, FEATURES, FUSED, MIN_IMMEDIATE_EXPERTS
from ktbench.spec.limits import Limit

__all__ = [
    "BY_NAME",
    "FEATURES",
    "FUSED",
    "MIN_IMMEDIATE_EXPERTS",
    "MOST_FILE_BYTES",
    "PHASES",
    "Best",
    "Feature",
    "FeatureValue",
    "Limit",
    "Phase",
    "allowed_features",
    "feature_tag",
    "features_label",
    "features_on",
    "parse_features",
    "register",
    "register_file",
    "value_text",
]

plug_in()  # last: what packages bring imports these names
