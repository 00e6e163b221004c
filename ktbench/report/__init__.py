"""Results to tables, figures and pages: a function of the log."""
