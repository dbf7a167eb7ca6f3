"""Hand-written schedules of a norm, a family for each kind of processor."""
