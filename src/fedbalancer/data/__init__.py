"""Where data comes from: sources, the folder they lie in, and the cache of what was made of them."""

from fedbalancer.data.cache import Prepared, cached
from fedbalancer.data.checksums import checksum
from fedbalancer.data.clients import SlicedClients, checked_users, joined
from fedbalancer.data.source import Source, choose

__all__ = [
    "Prepared",
    "SlicedClients",
    "Source",
    "cached",
    "checked_users",
    "checksum",
    "choose",
    "joined",
]
