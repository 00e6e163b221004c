"""What `doctor` says about cores for roles that are apart, and about peers."""

from __future__ import annotations

import sys

import pytest

from ktbench.cli import doctor
from ktbench.cli.doctor import _default_split
from ktbench.host import software
from ktbench.host.software import FoundPeer
from ktbench.spec.peers import PEERS, Peer, PeerSpec


@pytest.mark.parametrize(
    ("cpus", "says"),
    [
        ((0, 1), "device role on cpu 0; host role on cpu 1 (change with engine.device_threads)"),
        ((4, 2, 0), "device role on cpu 4; host role on cpu 2, 0 (change with engine.device_threads)"),
        ((0,), "- (engine.roles=split: needs a core for each role, there is 1)"),
    ],
)
def test_says_which_cores_the_roles_get(cpus: tuple[int, ...], says: str) -> None:
    assert _default_split(cpus) == says


def lines_of_peers() -> dict[str, str]:
    return dict(doctor._peers())


def test_every_peer_has_a_line_with_what_it_is_and_what_it_runs() -> None:
    lines = lines_of_peers()
    assert list(lines) == [peer.name for peer in PEERS]
    assert lines["transformers"] == "plain Transformers (prefill, decode, layer, serve): available"
    assert all(peer.title in lines[peer.name] for peer in PEERS)


def test_a_peer_that_is_missing_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "find_peer", lambda peer, spec: None)
    assert lines_of_peers()["kt-kernel"].endswith(
        "- (kt-kernel is not installed: nox -s peers makes an environment with it)"
    )


@pytest.mark.parametrize(
    ("python", "said"), [(sys.executable, ": 0.3.36"), ("/apart/python", ": 0.3.36 in /apart/python")]
)
def test_a_peer_that_is_installed_has_its_version_and_place(
    monkeypatch: pytest.MonkeyPatch, python: str, said: str
) -> None:
    def found(peer: Peer, spec: PeerSpec) -> FoundPeer:
        return FoundPeer(python=python, version="0.3.36")

    monkeypatch.setattr(doctor, "find_peer", found)
    monkeypatch.setattr(software, "find_peer", found)
    assert lines_of_peers()["llama.cpp"].endswith(said)


def test_a_program_on_the_path_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "program_versions", lambda names: dict.fromkeys(names, "5581"))
    assert lines_of_peers()["llama-bench"].endswith(": 5581 (peer.llama_bench=llama-bench)")
    assert lines_of_peers()["llama-server"].endswith(": 5581 (peer.llama_server=llama-server)")
