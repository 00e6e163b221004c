"""Tasks of suites: where their questions come from, and the lm-eval tasks built of them."""
