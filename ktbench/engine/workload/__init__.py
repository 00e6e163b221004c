"""What is put through the models: prompts and routing, seeded, the same for every cell."""
