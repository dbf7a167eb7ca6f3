"""The schedules: one module for each kind of device."""
