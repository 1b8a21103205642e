"""The data sets of the tasks on this disk: listing, fetching, importing, checking and showing them."""
