"""What features cost in accuracy: the engine answers questions, and answers are graded and compared in pairs."""
