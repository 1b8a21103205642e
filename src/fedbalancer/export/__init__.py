"""Model files for devices: converts a torch model into one file that LiteRT or ExecuTorch can train.

`run.export` writes and checks a file, `trace` records a model's training step, `litert` and `executorch` convert it.
"""
