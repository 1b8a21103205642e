"""The virtual-clock engine, its executors (inline, pool, Ray), device models and simulated attackers."""
