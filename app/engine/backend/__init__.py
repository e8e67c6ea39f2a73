"""What runs models: device, BLAS, memory probes, and the patches of MLX."""
