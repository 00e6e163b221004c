"""Injection: rules matched to the modules of a network, and the table of operators that may take their place."""
