"""Training through the routed experts: a differentiable experts operator on packed, frozen weights, and LoRA on it."""
