"""One session: the right output first, then the time, the evidence and the roof next to it."""
