"""History that another project measured: read, checked and kept under a ruler of its own.

Nothing here can reach a decision of ours: the foreign tables hang on no run, and every comparison
across the two rulers is refused.
"""
