"""Engines that serve: opened for a command line, or driven with a stream of requests whose tokens' times are noted."""
