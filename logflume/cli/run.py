"""`logflume run app.py`: run a Python file that defines a topology and calls `app.run()`."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from logflume.cli.common import Bootstrap, Data, make_app, place
from logflume.log import InvalidInput

app = make_app("")


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A Python file that makes an lf.App and ends with app.run().")],
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", metavar="DIR", help="Where the state of the topology is kept.")
    ] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Run a topology; an lf.App without a log of its own uses the one named here. Ctrl-C stops it cleanly.

    Example: logflume run examples/delays.py --bootstrap 127.0.0.1:9092
    """
    if not file.is_file():
        raise InvalidInput(f"no file {file}; expected a Python file such as examples/delays.py")
    address = place(data, bootstrap)
    os.environ["LOGFLUME_BOOTSTRAP" if bootstrap else "LOGFLUME_DATA"] = address
    if state_dir is not None:
        os.environ["LOGFLUME_STATE_DIR"] = str(state_dir)
    sys.path.insert(0, str(file.resolve().parent))
    runpy.run_path(str(file), run_name="__main__")
