"""Tasks from a user's own data: arrays, `.npz` files, folders, Parquet files and task files."""
