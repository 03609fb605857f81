"""What a model weighs: tensors and bytes by part, bytes a token reads, memory by context, floor.

Nothing is loaded. Every number follows from a geometry's `config.json`, and for a checkpoint on
disk the headers of its shards must say the same.
"""
