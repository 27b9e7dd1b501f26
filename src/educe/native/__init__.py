"""Kernels compiled on this machine: what stands between two matrix products, in one pass."""
