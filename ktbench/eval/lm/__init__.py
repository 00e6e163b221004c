"""The engine as a model of lm-eval, and the cache of its answers."""

from ktbench.eval.lm.cache import AnswerCache, identity_of, weights_id
from ktbench.eval.lm.generation import Answer
from ktbench.eval.lm.model import EngineLM, Tally

__all__ = ["Answer", "AnswerCache", "EngineLM", "Tally", "identity_of", "weights_id"]
