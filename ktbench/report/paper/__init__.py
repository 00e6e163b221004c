"""TODO: what ktbench/report/paper is for."""
