"""What pages show: the data in them."""

import json
import re
from pathlib import Path
from typing import Any


def shown_in(path: Path) -> dict[str, Any]:
    found = re.search(r'id="report">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    (shown,) = json.loads(found[1])
    return shown
