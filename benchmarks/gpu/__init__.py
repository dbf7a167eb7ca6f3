"""Checks and measurements of the CUDA kernels on a GPU; `benchmarks/gpu_check.py` runs them all."""
