"""What was learned, as one document rendered to terminal, HTML and JSON."""
