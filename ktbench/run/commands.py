"""The command that starts a worker: with this interpreter, or with that of a peer's own environment."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence

from ktbench.host.software import find_peer
from ktbench.spec.peers import BY_NAME
from ktbench.spec.run_spec import RunSpec

_MODULE = "ktbench.run.serve"
SERVE: tuple[str, ...] = (sys.executable, "-m", _MODULE)


def serve_command(spec: RunSpec) -> Sequence[str]:
    """The worker of a spec's system. A peer's environment comes first on its path, then ours with all that we need."""
    if spec.system == "ktbench":
        return SERVE
    found = find_peer(BY_NAME[spec.system], spec.peer)
    if found is None or found.python == sys.executable:
        return SERVE
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    code = (
        f"import site, sys; [site.addsitedir(path) for path in {ours!r}]; from {_MODULE} import main; sys.exit(main())"
    )
    return (found.python, "-c", code)
