"""Searches for the settings with which a method performs best on a task (`fedbalancer sweep`)."""
