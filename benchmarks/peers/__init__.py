"""What :mod:`benchmarks.recall` compares: the tools, the processes they run in, and the judge of their results."""
