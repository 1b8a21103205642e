"""The Flower app of the test bed: a folder for `flwr run`. The phones keep their client app loaded."""

from __future__ import annotations

from pathlib import Path

from fedbalancer.core.files import write_text

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "testbed"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedbalancer"

[tool.flwr.app.components]
serverapp = "bed.server_app:app"
clientapp = "bed.client_app:app"

[tool.flwr.app.config]
plan = ""
method = ""
budget = 0.0
target = 0.0
"""

SERVER = '''\
"""The server of the test bed."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbalancer.paper.testbed.server import main

app = ServerApp()


@app.main()
def run(grid: Grid, context: Context) -> None:
    main(grid, context)
'''

CLIENT = '''\
"""Not used: the phones' processes keep their app and model loaded."""

from flwr.clientapp import ClientApp

app = ClientApp()
'''


def write_app(folder: Path) -> Path:
    """Write the app's files into `folder` and return it."""
    package = folder / "bed"
    package.mkdir(parents=True, exist_ok=True)
    write_text(folder / "pyproject.toml", PYPROJECT)
    for name, text in {"__init__": "", "server_app": SERVER, "client_app": CLIENT}.items():
        write_text(package / f"{name}.py", text)
    return folder
