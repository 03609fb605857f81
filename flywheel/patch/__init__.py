"""Patches as levers: read, admitted, kept in worktrees of their own, gated, compared, recorded."""
