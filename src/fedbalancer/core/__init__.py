"""Values, contracts, randomness, settings, errors and files: what every other package builds on. Needs NumPy only."""
