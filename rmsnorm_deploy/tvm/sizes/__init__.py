"""What is known about the sizes in a model before it runs."""
