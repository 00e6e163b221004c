"""Serving as a workload: the stream of requests that is replayed, and what a replay was like."""
