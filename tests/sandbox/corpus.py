# ruff: noqa: E501
"""The stated corpus: programs whose results are byte for byte the same under one fingerprint.

They use what varies between runs of plain Python (hashes, order of sets, random numbers, names of
temporary files, process numbers, the environment, locale and time zone) and what could vary with
the machine (order of listings, float formatting, threads joined in order). Not in it, because not
promised: the time of day, ``os.urandom`` and the user's id.
"""

from __future__ import annotations

from educe.sandbox import Call, Job, Limits

_LIMITS = Limits(cpu_s=20, wall_s=120)
_PROGRAMS = {
    "hashes": "print(hash('a'), hash(b'b'), hash((1, 'x', None)), hash(frozenset('abc')))",
    "order of sets": "print({'x', 'y', 'z', 'w'}, set('determinism'), frozenset(range(40, 0, -3)))",
    "random": "import random\nprint(random.random(), random.getrandbits(64), random.sample(range(99), 5), random.gauss(0, 1))",
    "random in a child": "import os, random, sys\nsys.stdout.flush()\nif os.fork() == 0:\n    print(sorted({'c', 'h'}))\n    sys.stdout.flush(); os._exit(0)\nos.wait(); print(random.random())",
    "uuid of a name": "import uuid\nprint(uuid.uuid5(uuid.NAMESPACE_DNS, 'educe'), uuid.UUID(int=__import__('random').getrandbits(128)))",
    "process numbers": "import os, subprocess\nprint(os.getpid(), os.getppid(), flush=True); subprocess.run(['sh', '-c', 'echo $$'])",
    "environment": "import os\nprint(sorted(os.environ.items()), os.getcwd(), os.uname().nodename)",
    "locale and time zone": "import locale, time\nprint(time.tzname, time.localtime(0), locale.getlocale(), '%.3f' % 1e10)",
    "its own file": "print(__file__, __name__); raise ValueError('text')",
    "recursion in a trace": "def f(n): return f(n - 1) if n else 1 / 0\nf(5)",
    "listing": "import os\nfor n in 'zebra', 'ant', 'Mole': open(n, 'w').close()\nprint(sorted(os.listdir('.')))",
    "floats": "print(sum([0.1] * 10), 1e22, 2 ** 0.5, (-8) ** (1 / 3), float('nan'))",
    "dictionaries": "d = {c: ord(c) for c in 'determinism'}\nd.pop('t'); d['t'] = 1; print(d, list(vars(__import__('math')))[:9])",
    "threads": "import threading\nout = []\nfor i in range(4):\n    t = threading.Thread(target=out.append, args=(i,)); t.start(); t.join()\nprint(out)",
    "json and text": "import json\nprint(json.dumps({'é': [1.5, None, True]}, sort_keys=True), 'straße'.upper(), repr('\\ud800'))",
    "regular expressions": "import re\nprint(re.sub(r'(\\w+)', lambda m: m[1][::-1], 'one two three'), re.findall('a*', 'baac'))",
    "dates": "import datetime\nprint(datetime.datetime(2020, 2, 29) + datetime.timedelta(days=366), datetime.date.fromordinal(700000))",
    "big numbers": "print(3 ** 500, pow(7, 10 ** 18, 10 ** 9 + 7), divmod(-7, 3), 10 ** 30 // 7)",
    "both streams": "import sys\nfor i in range(50): print(i); print(-i, file=sys.stderr)",
    "exit code": "import sys\nprint('before', end=''); sys.exit(7)",
    "standard input": "import sys\nprint([line[::-1] for line in sys.stdin])",
    "many lines": "for i in range(3000): print(i, hex(i * i))",
}
_CALLS = "import random\nstate = []\ndef f(x):\n    state.append(x)\n    return {'seen': state, 'set': set('abc'), 'r': random.random(), 'h': hash('k')}"


def jobs() -> dict[str, Job]:
    """Return the corpus by name."""
    made = {
        name: Job(source, stdin=b"one\ntwo\n", seed=11, limits=_LIMITS)
        for name, source in _PROGRAMS.items()
    }
    calls = tuple(Call((x,)) for x in range(3))
    made["calls"] = Job(_CALLS, entry_point="f", calls=calls, seed=11, limits=_LIMITS)
    made["shell"] = Job(
        "for x in c a b; do echo $x$((RANDOM - RANDOM + 1 > 40000)); done | sort; pwd; umask",
        runtime="bash",
        limits=_LIMITS,
    )
    made["numpy"] = Job(
        "import numpy as np\nprint(np.random.rand(3), np.random.default_rng(5).integers(0, 99, 4), np.arange(6).reshape(2, 3).sum(0))",
        runtime="python-numpy",
        seed=11,
        limits=_LIMITS,
    )
    return made
