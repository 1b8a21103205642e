"""The report of a folder as a live page, while runs in it go on."""
