"""The injections, one noun a file; ``flywheel.selftest.matrix`` gathers them."""
