"""Trainers: PyTorch, compiled kernels, LiteRT and ExecuTorch model files; and the export to such files."""
