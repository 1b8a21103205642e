"""Kinds of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]
CountArray = NDArray[np.int32]
Weights = NDArray[np.float32]
