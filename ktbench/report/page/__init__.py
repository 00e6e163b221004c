"""TODO: what ktbench/report/page is for."""
