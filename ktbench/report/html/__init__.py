"""The page of a run: one file with all of its tables and figures, for a browser, a phone and print."""
