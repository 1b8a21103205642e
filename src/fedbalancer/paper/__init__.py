"""Reproduction of the paper: its tables and figures, golden rounds, and benchmarks (`fedbalancer paper`, `bench`)."""
