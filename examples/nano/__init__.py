"""Training of the nano model that ships in evals/nano."""
