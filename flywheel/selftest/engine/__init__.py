"""A scripted engine: a real process that speaks the log contract and computes nothing."""
