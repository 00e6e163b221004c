"""The objects everything turns on: plain frozen data, no I/O."""
