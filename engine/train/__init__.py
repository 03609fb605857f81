"""Everything that makes the project's own checkpoints: corpus and training."""
