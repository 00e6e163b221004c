"""All published numbers of a run: a page, a document to print, and how far simulated values are from them."""
