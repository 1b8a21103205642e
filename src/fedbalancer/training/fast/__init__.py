"""Fast local training on a CPU: layers with kernels of our own, and the rewriting of a module to use them."""
