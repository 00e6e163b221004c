"""What a step reads and computes, and what its worker holds: arithmetic over the spec of a cell."""
