"""A server under trial: what a crowd does to it, and how fast it is."""
