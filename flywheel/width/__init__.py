"""How wide to draft: what a verify step costs by width, and what acceptance pays for it."""
