"""Tasks of your own data: from arrays, a folder, a Parquet file, or a TOML file that names one of these."""
