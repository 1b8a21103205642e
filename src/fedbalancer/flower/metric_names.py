"""Which of the clients' own metrics a run records: their names come from clients, so their number is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from fedbalancer.flower.compat import MetricRecord, RecordDict
from fedbalancer.flower.replies import WEIGHT

MOST_NAMES = 100


class MetricNames:
    """The names admitted so far, at most `MOST_NAMES` in a run beside the number of samples. Of new names those that
    most clients send come first, so that one client cannot keep out the metrics of the others."""

    def __init__(self, say: Callable[..., None], names: Iterable[str] = ()) -> None:
        self._say, self.names = say, set(names)
        self._refused = False

    def kept(self, contents: Sequence[RecordDict]) -> list[RecordDict]:
        """The clients' metrics without those whose names are not admitted."""
        sent = Counter(name for content in contents for name in _names(content))
        fresh = sorted((name for name in sent if name not in self.names), key=lambda name: (-sent[name], name))
        room = MOST_NAMES - len(self.names)
        self.names |= set(fresh[:room])
        refused = set(fresh[room:])
        if refused and not self._refused:
            self._refused = True
            self._say("metrics not recorded", names=sorted(refused)[:3], count=len(refused), most=MOST_NAMES)
        return [_without(content, refused) for content in contents]


def _names(content: RecordDict) -> set[str]:
    return {name for record in content.metric_records.values() for name in record if name != WEIGHT}


def _without(content: RecordDict, refused: set[str]) -> RecordDict:
    if not refused & _names(content):
        return content
    records = {
        kind: MetricRecord({name: value for name, value in record.items() if name not in refused})
        for kind, record in content.metric_records.items()
    }
    return RecordDict({**content, **records})
