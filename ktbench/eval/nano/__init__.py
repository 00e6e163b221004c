"""The nano model: generated tasks in six categories, a byte tokenizer and a small MoE trained on them."""
