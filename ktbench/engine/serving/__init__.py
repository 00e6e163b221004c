"""Serving: many requests at once, on paged keys and values."""
