"""The benchmark: samples per second of every training path, next to a naive loop and the arithmetic limit."""
