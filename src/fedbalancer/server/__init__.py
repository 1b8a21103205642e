"""The server: plans a round, checks the clients' reports, and computes the next state.

`server.Server` runs the policies of a method. `clients`, `threshold`, `pace`, `deadline`, `aggregate`, `model_average`
and `late` hold the policies of one slot each. `loop.rounds` connects a server to an engine.
"""

from fedbalancer.server.loop import rounds
from fedbalancer.server.server import Server, ServerPolicies

__all__ = ["Server", "ServerPolicies", "rounds"]
