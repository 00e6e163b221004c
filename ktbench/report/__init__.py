"""Records to rows to tables and figures: a function of the store and of nothing else."""
