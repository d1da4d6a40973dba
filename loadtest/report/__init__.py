"""A run as people read it: a page, Markdown, JSON."""
