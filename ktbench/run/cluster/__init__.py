"""A sweep on several nodes: its shards, and the launcher that starts them."""
