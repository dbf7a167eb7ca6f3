"""The search for the schedule of each norm."""
