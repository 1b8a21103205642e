"""The run folder: what a run leaves behind, and how it goes on after it was killed."""

from fedbalancer.store.checkpoint import Checkpoints
from fedbalancer.store.codec import decode_state, encode_state, from_jsonable, to_jsonable
from fedbalancer.store.contents import read_manifest
from fedbalancer.store.folder import STATUSES, RunFolder
from fedbalancer.store.journal import Journal, open_at
from fedbalancer.store.tables import CLIENTS_SCHEMA, EVALS_SCHEMA, ROUNDS_SCHEMA

__all__ = [
    "CLIENTS_SCHEMA",
    "EVALS_SCHEMA",
    "ROUNDS_SCHEMA",
    "STATUSES",
    "Checkpoints",
    "Journal",
    "RunFolder",
    "decode_state",
    "encode_state",
    "from_jsonable",
    "open_at",
    "read_manifest",
    "to_jsonable",
]
