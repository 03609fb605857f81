"""How long the kernels take at the model's real shapes, beside what their bytes allow.

Nothing here is imported by a kernel, and only `work` and `bandwidth` import Triton.
"""
