"""Convolutions on CPUs: by products of matrices, or directly where a group has few channels."""
