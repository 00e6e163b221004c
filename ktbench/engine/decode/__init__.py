"""A decode step without its Python: recorded once on memory that stays, then replayed call by call."""
