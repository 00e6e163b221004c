"""The page of a run: findings, figures with tooltips, tables and origin in one HTML file."""
