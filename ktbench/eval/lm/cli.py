"""lm-eval's own command line, which knows our engine as `--model ktbench`.

python -m ktbench.eval.lm.cli run --model ktbench --model_args path=evals/nano,avx512=true --tasks gsm8k
"""

from __future__ import annotations

import sys

from ktbench.spec.errors import RequestError

NAME = "ktbench"
_BAD_REQUEST = 2


def main() -> int:
    """Run lm-eval on the words of the command line; 2 where what is asked of our engine is refused."""
    from lm_eval.__main__ import cli_evaluate

    register()
    try:
        cli_evaluate()
    except RequestError as error:
        print(f"ktbench: {error}", file=sys.stderr)
        return _BAD_REQUEST
    return 0


def register() -> None:
    """Have lm-eval know our engine by its name; it looks for models of others nowhere."""
    import lm_eval.models  # noqa: F401, who registers its own first
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target="ktbench.eval.lm.model:EngineLM")


if __name__ == "__main__":
    sys.exit(main())
