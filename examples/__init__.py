"""Projects beside the package, run from a checkout."""
