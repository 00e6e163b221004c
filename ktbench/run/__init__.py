"""Carries requests out: feasibility, worker processes, sessions, sweeps, clusters, evaluations."""
