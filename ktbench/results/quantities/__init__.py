"""What is measured of trials: each quantity once, from the records of a cell to the columns of files and tables."""
