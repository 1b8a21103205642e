"""Readers of the files of the built-in tasks. They check every value and execute nothing in the files."""
