"""Other systems behind the engine's protocol."""
