"""Draft heads as the loop sees them: archived, judged, released. Never imports the engine."""
