"""Hosting: which configuration, the server's process, the live proof, and days and nights."""
