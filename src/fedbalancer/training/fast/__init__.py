"""The fast training backend for CPUs: layers with compiled kernels, and the rewriting of a module to use them."""
