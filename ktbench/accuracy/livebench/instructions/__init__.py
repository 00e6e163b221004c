"""The instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911), and whether an answer follows them."""

from ktbench.accuracy.livebench.instructions.following import check_arguments, follow, following_score, unknown

__all__ = ["check_arguments", "follow", "following_score", "unknown"]
