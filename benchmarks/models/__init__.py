"""Models that are timed whole: with the sizes of real ones, and weights made here."""
