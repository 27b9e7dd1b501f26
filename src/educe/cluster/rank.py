"""``python -m educe.cluster.rank RECIPE.json RANK SIZE PORT``: one trainer rank."""

from __future__ import annotations

import sys

from educe.cluster.launch import rank_main

if __name__ == "__main__":
    sys.exit(rank_main(sys.argv[1:]))
