"""What was requested: plain frozen data, no I/O."""
