"""Entry of a zygote: lays out memory before what fills it is imported."""

from __future__ import annotations

from educe.sandbox.inside import large_pages


def main() -> None:
    """Become a zygote."""
    large_pages.make_room()
    from educe.sandbox.inside import zygote

    zygote.main()
