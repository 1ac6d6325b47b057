"""Work per record: a plain Python reference and numba kernels with equal results."""
