"""What answers were worth: tables, figures and captions of cells that were asked a suite."""
