"""The figures of reports, drawn once with matplotlib: for print, and for the page, which embeds them."""
