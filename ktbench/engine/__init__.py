"""The hybrid engine: Hugging Face modules with the routed experts replaced by an operator of our own."""
