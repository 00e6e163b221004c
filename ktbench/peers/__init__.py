"""Other systems behind the engine's own protocol, so that they are measured like it."""
