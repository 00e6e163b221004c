"""The peer table, and what a spec makes of a peer."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from ktbench.spec.peers import BY_NAME, PEERS, PeerSpec
from ktbench.spec.weights import Precision
from ktbench.spec.wire import spec_id
from tests.tiny import tiny_spec


def test_rows_are_complete() -> None:
    assert len(BY_NAME) == len(PEERS)
    assert all(set(peer.types) <= set(get_args(Precision)) for peer in PEERS)
    assert all(peer.install for peer in PEERS if peer.package)


def test_a_peer_has_none_of_our_features() -> None:
    with pytest.raises(ValueError, match=r"system=llama.cpp: has none of our features, leave out \+v"):
        tiny_spec(system="llama.cpp", avx512=True)


def test_labels_name_the_peer_and_what_it_runs() -> None:
    assert tiny_spec(system="llama.cpp").label == "llama.cpp"
    assert tiny_spec(system="transformers", peer=PeerSpec(implementation="eager")).label == "transformers eager"
    assert tiny_spec(avx512=True).label == "+v"


def test_where_a_peer_is_found_is_no_part_of_what_was_asked() -> None:
    here, there = (
        tiny_spec(system="llama.cpp", peer=PeerSpec(python=python, tune_s=s)) for python, s in ((None, 1), ("x", 2))
    )
    assert spec_id(here) == spec_id(there)
    one, other = (tiny_spec(system="transformers", peer=PeerSpec(implementation=i)) for i in ("eager", "grouped_mm"))
    assert spec_id(one) != spec_id(other)
    assert one.weights_key == other.weights_key


def test_formats_of_equal_file_type_share_a_worker_and_others_do_not() -> None:
    keys = {
        precision: tiny_spec(system="llama.cpp", precision=precision, device_precision=precision).weights_key
        for precision in ("bf16", "q8_0", "int8", "q4_0")
    }
    assert keys["q8_0"] == keys["int8"]
    assert len(set(keys.values())) == 3


def test_quantised_formats_multiply_integers() -> None:
    assert tiny_spec(system="llama.cpp", precision="q8_0").dtype == "int8"
    assert tiny_spec(system="llama.cpp").dtype == "bf16"
    assert tiny_spec(system="transformers").tolerance == 0.01
    assert replace(tiny_spec(avx512=True), precision="q4_0").tolerance == 0.03


def test_no_negative_time_to_tune() -> None:
    with pytest.raises(ValueError, match=r"peer.tune_s=-1: must be at least 0"):
        PeerSpec(tune_s=-1)
