"""Late policies: how reports that arrive after their round has closed are used."""

from fedbalancer.server.late.boosted import Boosted
from fedbalancer.server.late.buffered import Buffered
from fedbalancer.server.late.joins import Joins, staleness_weight
from fedbalancer.server.late.lost import Lost

__all__ = ["Boosted", "Buffered", "Joins", "Lost", "staleness_weight"]
