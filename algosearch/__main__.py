"""`python -m algosearch`: the command line."""

from __future__ import annotations

from algosearch.cli import main

if __name__ == "__main__":
    main()
