"""Products of matrices by a BLAS library."""
