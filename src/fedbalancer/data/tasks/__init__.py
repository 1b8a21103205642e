"""The built-in tasks. Each module defines the data sources, the model and the settings of one task."""
