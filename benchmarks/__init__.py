"""Programs that measure: see README.md in this folder."""
