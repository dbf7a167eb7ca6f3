"""The compiled folder: how it is written, and how it is run."""
