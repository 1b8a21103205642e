"""Model files for devices: a torch model becomes one file that LiteRT, or ExecuTorch, trains there."""
