"""Accuracy: the engine answers questions, and its answers are graded."""
