"""The client side: which samples, how much work, and what is released about it."""
