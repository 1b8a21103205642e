"""A virtual environment for each peer, made once, with the torch that the project pins."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
REQUIREMENTS = {
    "flower": ["flwr[simulation]==1.41.0", "torch"],
    "pfl": ["pfl[pytorch]==0.6.0", "torch"],
}


def python_of(peer: str, folder: Path) -> Path:
    """The interpreter of the peer's environment under `folder`; made, and filled, where it is not there yet."""
    place = folder / peer
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pins = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    wanted = "\n".join([*REQUIREMENTS[peer], *(pin for pin in pins if pin.startswith("torch=="))])
    done = place / "installed.txt"
    if done.is_file() and done.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {', '.join(REQUIREMENTS[peer])} into {place}", file=sys.stderr, flush=True)
    venv.create(place, with_pip=True, clear=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", CONSTRAINTS]
    subprocess.run([*map(str, install), *REQUIREMENTS[peer]], check=True, stdout=sys.stderr)
    done.write_text(wanted, encoding="utf-8")
    return python
