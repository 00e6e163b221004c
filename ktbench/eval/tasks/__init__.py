"""Tasks of suites: the sources of their questions, and the lm-eval tasks built from them."""
