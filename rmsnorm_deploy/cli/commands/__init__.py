"""The commands, one in each file: a function ``command`` for typer, and ``ORDER``, its place in the list.

What is heavy (onnxruntime, TVM, rich's tables) is imported in the functions, so that --help is quick.
"""
