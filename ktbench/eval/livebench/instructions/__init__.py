"""The instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911), and whether an answer follows them."""
