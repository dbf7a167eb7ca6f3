"""CPU schedules of what is neither a norm nor a product: one file for each kind of kernel."""
