"""Tells people what happened in the night, from a process of its own: the loop never waits for it.

The standard library only, so that it starts quickly and costs the box little while it measures.
"""
