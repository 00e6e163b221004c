"""The engine as a model of lm-eval."""
