"""A run in the formats of other programs: lm-eval's results, llama-bench's table, Chrome's traces."""
