"""Running models in onnxruntime: the library of kernels, sessions, inputs."""
