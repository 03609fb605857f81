"""Plain PyTorch twins of the kernels: differentiable, any device, any leading batch shape.

They know tensors and scalars only: no checkpoint, no configuration, no state.
"""
