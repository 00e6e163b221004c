"""Plain Transformers: its modelling code and each of its own implementations of routed experts."""
