"""Values, contracts, randomness, settings, errors and files, on which all other packages build.

Everything here imports with NumPy only. `core.contracts` declares the policies, `core.types` the values of a round.
"""
