"""Search for the settings with which a method does best on a task (`fedbalancer sweep`)."""
