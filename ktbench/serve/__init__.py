"""The serving engine behind an OpenAI-compatible HTTP API, and in a terminal."""
