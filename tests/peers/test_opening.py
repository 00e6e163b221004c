"""The modules that open peers."""

from __future__ import annotations

from importlib import import_module
from inspect import signature

import pytest

from ktbench.spec.peers import PEERS, Peer


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_row_names_a_module_that_opens_it(peer: Peer) -> None:
    assert list(signature(import_module(peer.opener).open_peer).parameters) == ["specs", "host"]
