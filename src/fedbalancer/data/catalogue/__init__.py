"""The data on this computer: list, download, import, check and summarize them."""
