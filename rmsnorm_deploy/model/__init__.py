"""A model as a file and as a graph: reading, writing, cutting, raising its opset. Knows nothing of norms."""
