"""Choices of a configuration timed inside a step."""
