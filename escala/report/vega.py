"""The script that adds values to the chart of a page where JavaScript runs.

To bundle its libraries takes seconds, and gives the same text each time. So the script is kept in
the store.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from escala.cache import store


def script() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which defines `vegaEmbed`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vega.js")

        def make() -> None:
            path.write_text(_bundled(), encoding="utf-8")

        store.get_or_compute(
            "vega", code=__name__, inputs={}, parameters={}, outputs={"script": path}, make=make
        )
        return path.read_text(encoding="utf-8")


def _bundled() -> str:
    import vl_convert

    # A script in a page ends at the first end tag of its name, wherever it stands.
    return re.sub("</(?=script)", r"<\\/", vl_convert.javascript_bundle(), flags=re.IGNORECASE)
