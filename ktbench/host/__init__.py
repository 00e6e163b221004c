"""The machine at hand: what it has, what it grants, how it is set, and how fast it can be."""
