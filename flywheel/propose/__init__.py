"""Proposers: external programs that are given a brief and answer with levers; none is trusted."""
