"""LiveBench: its questions read from local files, and the graders that need no other model."""
