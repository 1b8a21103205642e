"""`fedbalancer export`: one file of a model, to be trained on a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli.options import Json, Scale, Variant
from fedbalancer.cli.tasks import folder_name
from fedbalancer.core.errors import BadSetting

Shape = Annotated[
    str | None, typer.Option(help="Of a sample, as in 1,28,28: TASK is then package.module:function of a torch model.")
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="File (default: TASK.tflite, or TASK.pte for ExecuTorch).")
]


def export(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task, or package.module:thing of your own code.")],
    runtime: Annotated[str, typer.Option(help="What the device runs: litert or executorch.")] = "litert",
    out: Out = None,
    scale: Scale = "small",
    variant: Variant = None,
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Write a model as one file that trains: weights in and out, a step of SGD, losses, outputs.

    Losses and gradients are compared with torch's on random batches first; a model whose gradients differ is refused
    with the layer's name. litert needs TensorFlow here (`pip install 'fedbalancer[export]'`) and none on the device;
    executorch needs `pip install 'fedbalancer[executorch]'` in both places.

    Examples:

        fedbalancer export har --runtime litert -o har.tflite

        fedbalancer export har --runtime executorch -o har.pte

        fedbalancer export my_package.nets:make --shape 1,28,28 -o mine.tflite
    """
    from fedbalancer.export.run import check_runtime, load_source
    from fedbalancer.export.run import export as write
    from fedbalancer.training.open_model import SUFFIXES

    check_runtime(runtime)  # before the task's data is looked for
    loaded = load_source(task, scale=scale, variant=variant, shape=_shape(shape))
    done = write(loaded, out if out is not None else Path(f"{folder_name(task)}{SUFFIXES[runtime]}"), runtime)
    found = done.agreement
    if as_json:
        about = {"file": str(done.path), "bytes": done.size_bytes, "parameters": done.parameters}
        typer.echo(json.dumps({**about, "loss_difference": found.loss, "gradient_difference": found.gradient}))
        return
    typer.echo(f"{done.path}: {done.size_bytes:,} bytes for a model of {done.parameters:,} parameters")
    typer.echo(f"against torch: losses within {found.loss:.1e}, gradients of every layer within {found.gradient:.1e}")


def _shape(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadSetting(f"--shape {text!r} must be whole numbers, as in 1,28,28") from None
