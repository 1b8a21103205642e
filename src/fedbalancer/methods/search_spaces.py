"""The search space of every method: what `fedbalancer benchmark` tunes, declared in one place.

A method's space has the client's learning rate, the server's learning rate if the method has one, and at most three
hyper-parameters of its own. Every method gets the same number of trials. The first trial is the method as its paper or
its authors set it, so the table must hold those values as defaults.

To declare a space, add a line to `SPACES`. Keys and values are written as for `fedbalancer sweep --space`: a list
`key=a,b,c` or a range `key=low..high[:log]`. Use values that the paper tunes or varies, and say nothing about a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedbalancer.core.errors import BadSetting

CLIENT_RATE = "learning_rate=.25..4:log"
"""The client's learning rate, as a multiple of the task's. All methods have it, with the same range."""
MOST = 3
"""Maximum number of a method's own hyper-parameters."""


@dataclass(frozen=True)
class SearchSpace:
    """The tuned hyper-parameters of a method, besides the client's learning rate.

    Args:
        own: Up to three of the method's own hyper-parameters.
        server_rate: The server's learning rate; None if the method has none.

    Raises:
        BadSetting: If there are too many hyper-parameters.

    >>> SearchSpace(("w=5,20",)).texts
    ('learning_rate=.25..4:log', 'w=5,20')
    """

    own: tuple[str, ...] = ()
    server_rate: str | None = None

    def __post_init__(self) -> None:
        if len(self.own) > MOST:
            raise BadSetting(f"a search space has {len(self.own)} hyper-parameters of its method; at most {MOST} count")

    @property
    def texts(self) -> tuple[str, ...]:
        """All parameters; the first one is the client's learning rate as a multiple of the task's."""
        return (CLIENT_RATE, *((self.server_rate,) if self.server_rate is not None else ()), *self.own)


_EPOCHS = "epochs=10,5,2,1"  # in this order the second trial, at the centre of the space, is not the first one again
_MU = "mu=.001,.01,.1,1"
_DEADLINE = "deadline=1T,2T,inf"
_PACE = ("w=5,20", "lss=.01,.05,.10", "dss=.05,.10,.25")

SPACES: Mapping[str, SearchSpace] = {
    # FedAvg in four variants: the fastest of the tuned ones is the reference.
    "fedavg+1t": SearchSpace((_EPOCHS,)),
    "fedavg+2t": SearchSpace((_EPOCHS,)),
    "fedavg+spc": SearchSpace((_EPOCHS, "deadline.share=.5..0.95")),
    "fedavg+wfa": SearchSpace((_EPOCHS,)),
    "prox+1t": SearchSpace((_EPOCHS, _MU)),
    "prox+2t": SearchSpace((_EPOCHS, _MU)),
    "sampleselection": SearchSpace((_EPOCHS, _MU, "samples.percentile=60,70,80,90")),
    "oort": SearchSpace(("clients.alpha=.5..5", "clients.overcommit=1..1.6", "clients.exploration_min=.05..0.5")),
    "fedbalancer": SearchSpace(_PACE),  # the grid of the paper's Table 2, without p
    "canter": SearchSpace(("deadline.gamma=.25..1", "p=.5..1", "aggregate.beta=0..0.9")),
    "oortbalancer": SearchSpace(_PACE),
    "timelyfl": SearchSpace((_EPOCHS, "deadline.share=.2..0.9", "deadline.epochs=.5..2:log")),
    "refl": SearchSpace((_EPOCHS, "deadline.share=.5..0.95", "late.beta=.1..0.9")),
    "fedbuff": SearchSpace(
        (_EPOCHS, "late.buffer=2,3,5,10", "aggregate=WeightedMean,ServerMomentum(beta=.3),ServerMomentum(beta=.9)")
    ),
    "fedasync": SearchSpace(("late.alpha=.2..1", "late.decay=polynomial,hinge,constant", _MU)),
    "ca2fl": SearchSpace((_EPOCHS, "late.buffer=2,3,5,10"), server_rate="aggregate.eta=.25..2:log"),
    "fadas": SearchSpace(
        (_EPOCHS, "late.buffer=2,3,5,10", "aggregate.delay=1,2,4"), server_rate="aggregate.eta=.001..0.1:log"
    ),
    "pisces": SearchSpace((_EPOCHS, "deadline.bound=2..20:log", "clients.exploration=.3,.9")),
    "fedcompass": SearchSpace(("late.most=100,50,200", "late.least=20,10,50", "late.alpha=.3..1")),
    "flude": SearchSpace((_EPOCHS, _DEADLINE, "train.rounds=5,2,10")),
    "heterofl": SearchSpace((_EPOCHS, _DEADLINE, "part.levels=5,4,3,2")),
    "fedrolex": SearchSpace((_EPOCHS, _DEADLINE, "part.levels=5,4,3,2")),
    "pyramidfl": SearchSpace(
        ("epoch_batches=off,1", "work.beta=.1..1", "deadline.drop_high=.2..0.9"), "aggregate.eta=.001..0.1:log"
    ),
    "scaffold": SearchSpace((_EPOCHS, _DEADLINE), "aggregate.eta=.5..2:log"),
    "feddyn": SearchSpace((_EPOCHS, _DEADLINE, "train.alpha=.001..1:log")),
    "mifa": SearchSpace((_EPOCHS, _DEADLINE), "aggregate.eta=.25..1:log"),
}
"""The space of every method of the table. A method with modifiers has the space of its base, unless it has its own."""


def space_of(method: str) -> SearchSpace:
    """Return the search space of a method.

    Args:
        method: A method's name. Without a space of its own, it has that of the longest declared name that it starts
            with, as `fedavg+1t+fednova` has that of `fedavg+1t`.

    Raises:
        BadSetting: If no space is declared.

    >>> space_of("fedbalancer+late").own == space_of("fedbalancer").own
    True
    """
    stem = method.partition("[")[0]
    starts = [name for name in SPACES if stem == name or (stem.startswith(name) and stem[len(name)] in "+-")]
    if not starts:
        raise BadSetting(f"method {method!r} has no search space; declare one in methods/search_spaces.py")
    return SPACES[max(starts, key=len)]
