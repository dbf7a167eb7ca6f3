"""Softmax, sums, extremes and norms with a mean on CPUs: one file for each kind."""
