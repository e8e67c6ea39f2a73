"""Device, BLAS, memory probes, and the patches of MLX."""
