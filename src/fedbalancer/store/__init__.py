"""The run folder: manifest, tables, checkpoints and model of a run, written so that a killed run can be resumed."""

from fedbalancer.store.comparison import COMPARISON, ComparisonFile
from fedbalancer.store.contents import check_free, new_manifest, read_manifest, read_status
from fedbalancer.store.folder import MemoryRecorder, RunFolder
from fedbalancer.store.rows import ClassRow, ClientRow, EvalRow, PopulationRow, PrivacyRow, RoundRow, schema_of

__all__ = [
    "COMPARISON",
    "ClassRow",
    "ClientRow",
    "ComparisonFile",
    "EvalRow",
    "MemoryRecorder",
    "PopulationRow",
    "PrivacyRow",
    "RoundRow",
    "RunFolder",
    "check_free",
    "new_manifest",
    "read_manifest",
    "read_status",
    "schema_of",
]
