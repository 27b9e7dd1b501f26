"""One process of [prefetch]: ``python -m educe.rollout.prefetch_worker`` (started by Prefetch).

Builds the function that the setup names, then makes one order after the other, in their order.
"""

from __future__ import annotations

import json
import sys

from educe.core.errors import DomainError, EduceError
from educe.core.types import JSON
from educe.rollout.framing import encode_frame, read_frame
from educe.rollout.lifeline import WorkerArguments, become_worker
from educe.rollout.outcomes import describe


def main() -> None:
    channel = become_worker(WorkerArguments.from_argv(sys.argv[1:]))
    setup = read_frame(channel)
    if setup is None:
        return
    from educe.domains.references import load_reference

    try:
        make = load_reference(setup["make"], purpose="[prefetch]")(setup["options"])
    except Exception as error:
        reason = str(error) if isinstance(error, EduceError) else describe(error)
        channel.sendall(encode_frame({"type": "last_words", "reason": reason}))
        return
    channel.sendall(encode_frame({"type": "ready"}))
    while (message := read_frame(channel)) is not None:
        channel.sendall(encode_frame(_made(make, json.loads(message["order"]))))


def _made(make: JSON, order: JSON) -> dict[str, JSON]:
    try:
        return {"type": "made", "made": make(order)}
    except DomainError as error:
        return {"type": "failed", "reason": str(error), "is_data": True}
    except IndexError as error:
        # Ordered in vain beyond the end of a finite domain; who asks for it hears of it.
        return {"type": "failed", "reason": str(error), "is_data": True}
    except Exception as error:
        return {"type": "failed", "reason": f"{order}: {describe(error)}", "is_data": False}


if __name__ == "__main__":
    main()
