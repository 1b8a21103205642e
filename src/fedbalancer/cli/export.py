"""`fedbalancer export`: write a model as one file that can be trained on a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli.options import Json, Scale, Variant
from fedbalancer.cli.output import folder_name
from fedbalancer.core.errors import BadSetting

Shape = Annotated[
    str | None,
    typer.Option(help="Shape of a sample, such as 1,28,28; TASK is then package.module:function of a torch model."),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="File. Default: TASK.tflite, or TASK.pte for ExecuTorch.")
]


def export(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of a task, TOML file, or package.module:function.")],
    runtime: Annotated[str, typer.Option(help="Runtime of the device: litert or executorch.")] = "litert",
    out: Out = None,
    scale: Scale = "small",
    variant: Variant = None,
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Export a model as one file for training on a device: get and set weights, SGD steps, losses and outputs.

    Losses and gradients are first compared with torch's on random batches. A model whose gradients differ is refused,
    with the name of the layer. litert needs TensorFlow on this machine (`pip install 'fedbalancer[export]'`), but not
    on the device; executorch needs `pip install 'fedbalancer[executorch]'` on both.

    Examples:

        fedbalancer export har --runtime litert -o har.tflite

        fedbalancer export har --runtime executorch -o har.pte

        fedbalancer export my_package.nets:make --shape 1,28,28 -o mine.tflite
    """
    from fedbalancer.export.run import check_runtime, load_source
    from fedbalancer.export.run import export as write
    from fedbalancer.training.model_file import SUFFIXES

    check_runtime(runtime)  # before the data is loaded
    loaded = load_source(task, scale=scale, variant=variant, shape=_parse_shape(shape))
    done = write(loaded, out if out is not None else Path(f"{folder_name(task)}{SUFFIXES[runtime]}"), runtime)
    agreement = done.agreement
    if as_json:
        file = {"file": str(done.path), "bytes": done.size_bytes, "parameters": done.parameters}
        typer.echo(json.dumps({**file, "loss_difference": agreement.loss, "gradient_difference": agreement.gradient}))
        return
    typer.echo(f"{done.path}: {done.size_bytes:,} bytes for a model of {done.parameters:,} parameters")
    typer.echo(
        f"largest difference to torch: losses {agreement.loss:.1e}, gradients of a layer {agreement.gradient:.1e}"
    )


def _parse_shape(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadSetting(f"--shape {text!r} must be integers, such as 1,28,28") from None
