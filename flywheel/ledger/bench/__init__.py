"""Figures of the ledger itself: what it costs to hold a long history, and to share it."""
