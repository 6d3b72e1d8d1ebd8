"""A notebook without a browser: a real shell of IPython whose cells are run, and what they show."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config


@dataclass(frozen=True, slots=True)
class Ran:
    """What a cell gave. `shown`: each display as text, in order; `html`: as a browser has it; `places`: where each is shown."""

    is_done: bool
    printed: str
    shown: list[str]
    html: list[str]
    places: list[tuple[str, bool]]


class Notebook:
    """One notebook. Close it: IPython has one shell per process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = Config()
        config.HistoryManager.enabled = False
        cells = ModuleType("cells")  # without one of its own it would be `__main__`
        self._shell: Any = InteractiveShell.instance(config=config, ipython_dir=str(folder), user_module=cells)

    def run(self, text: str) -> Ran:
        with capture_output() as captured:
            is_done = self._shell.run_cell(text).success
        found = [each for each in captured.outputs if "text/html" in each.data]
        places = [(each.transient["display_id"], bool(each.update)) for each in found]
        shown, html = ([each.data[kind] for each in found] for kind in ("text/plain", "text/html"))
        return Ran(is_done, captured.stdout + captured.stderr, shown, html, places)

    def __getitem__(self, name: str) -> Any:
        return self._shell.user_ns[name]

    def close(self) -> None:
        self.run("%unload_ext logflume")
        InteractiveShell.clear_instance()
        sys.modules.pop("cells", None)
