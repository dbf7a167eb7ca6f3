"""Schedules for GPUs."""
