"""Python programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run_python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, warnings being errors; the store is in memory unless `environ` says otherwise."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, "ALGOSEARCH_STORE": "memory:", **environ},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
