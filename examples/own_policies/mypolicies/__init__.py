"""Two policies of one's own: one small file each, no change to fedbalancer."""
