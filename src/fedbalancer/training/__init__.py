"""Trainers: PyTorch with compiled kernels (`trainer`), exported model files (`open_model`), and the clock alone.

Modules that need torch import it when it is used, so that model files run without it.
"""
