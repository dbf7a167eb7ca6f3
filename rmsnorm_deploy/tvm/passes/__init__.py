"""From an imported module to one that can be compiled."""
