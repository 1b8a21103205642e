"""What an update loses and saves on its way to the server."""

from fedbalancer.client.compress.none import NoCompression

__all__ = ["NoCompression"]
