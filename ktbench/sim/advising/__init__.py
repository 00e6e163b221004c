"""Machines of parts, what to run on them, and which to buy."""
