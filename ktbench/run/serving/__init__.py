"""Serving engines: opened for a command line, or driven with a stream of requests while token times are noted."""
