"""TODO: what ktbench/report/figures is for."""
