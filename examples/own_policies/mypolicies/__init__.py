"""Two custom policies, one file each."""
