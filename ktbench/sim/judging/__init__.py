"""Fits the constants of the machine model, and judges it on what others published, measured and report."""
