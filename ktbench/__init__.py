"""ktbench: what each hybrid CPU/GPU optimisation of Mixture-of-Experts inference buys, measured."""

__version__ = "0.1.0"
