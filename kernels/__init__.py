"""Device kernels, each beside the PyTorch oracle that it is gated against.

Import-light on purpose: a well-known package on the index has the same name, and libraries that
look for it import this module instead. It must cost nothing and define no version.
"""
