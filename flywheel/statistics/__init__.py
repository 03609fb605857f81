"""Measurements in, decisions out. Pure."""
