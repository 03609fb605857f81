"""The draft-head programme: corpus, regeneration, capture, training, export, evaluation."""
