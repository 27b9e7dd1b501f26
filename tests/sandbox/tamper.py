# ruff: noqa: E501
"""Programs that try to be rewarded for a wrong answer. The task is always ``f(x) = x * x + 1``."""

from __future__ import annotations

TASK_INPUTS = (3, 7, 12)
GOLDEN = {
    "plain": "def f(x):\n    return x * x + 1\n",
    "helper": "def g(x):\n    return x * x\ndef f(x):\n    return g(x) + 1\n",
    "prints": "def f(x):\n    print('debug', x)\n    return x ** 2 + 1\n",
    "threads": "import threading\ndef f(x):\n    out = []\n    t = threading.Thread(target=lambda:"
    " out.append(x * x + 1)); t.start(); t.join()\n    return out[0]\n",
    "main guard": "def f(x):\n    return x * x + 1\nif __name__ == '__main__':\n    input()\n",
    "recursion": "def f(x):\n    return 1 if x == 0 else f(x - 1) + 2 * x - 1\n",
}
TAMPERS = {
    "always equal": "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o):"
    " return False\n    def __bool__(self): return True\n    def __hash__(self): return 1\n"
    "def f(x): return E()\n",
    "int subclass": "class I(int):\n    def __eq__(self, o): return True\n    def __sub__(self, o):"
    " return 0\n    __hash__ = int.__hash__\ndef f(x): return I(5)\n",
    "float subclass": "class F(float):\n    def __eq__(self, o): return True\ndef f(x): return F(5)\n",
    "str subclass": "class S(str):\n    def __eq__(self, o): return True\ndef f(x): return S('10')\n",
    "array-like": "class A:\n    def __array__(self, *a): return None\n    def tolist(self):"
    " return 10\n    def item(self): return 10\ndef f(x): return A()\n",
    "nan": "def f(x): return float('nan')\n",
    "true for one": "def f(x): return True\n",
    "exit in function": "import sys\ndef f(x): sys.exit(0)\n",
    "exit at import": "import sys\nsys.exit(0)\n",
    "hard exit in function": "import os\ndef f(x): os._exit(0)\n",
    "hard exit at import": "import os\nos._exit(0)\n",
    "kill itself": "import os\ndef f(x): os.kill(os.getpid(), 9)\n",
    "kill the parent": "import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    return 0\n",
    "exec true": "import os\nos.execv('/bin/true', ['true'])\n",
    "exec true in function": "import os\ndef f(x): os.execv('/bin/true', ['true'])\n",
    "exit handlers": "import atexit, os, sys\natexit.register(os._exit, 0)\n"
    "sys.excepthook = lambda *a: os._exit(0)\ndef f(x): raise ValueError\n",
    "timer exits": "import os, signal\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.01)\ndef f(x):\n    while True: pass\n",
    "patched builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\n"
    "builtins.type = lambda *a: int\nbuiltins.all = builtins.any = lambda *a: True\n"
    "builtins.len = lambda *a: 0\nbuiltins.repr = lambda *a: '10'\ndef f(x): return 0\n",
    "patched json": 'import json\njson.dumps = lambda *a, **k: \'{"s": "returned", "v": true}\'\n'
    "json.loads = lambda *a, **k: {}\ndef f(x): return 0\n",
    "patched math": "import math\nmath.isclose = lambda *a, **k: True\ndef f(x): return 0.0\n",
    "patched unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n"
    "def f(x): return 0\n",
    "walks frames": "import sys\ndef f(x):\n    frame = sys._getframe()\n    seen = []\n"
    "    while frame:\n        seen += [v for v in frame.f_locals.values() if type(v) is int]\n"
    "        frame = frame.f_back\n    return max(seen + [0])\n",
    "searches objects": "import gc\ndef f(x):\n    found = [o for o in gc.get_objects() if type(o)"
    " is tuple and len(o) == 2 and o[0] == x]\n    return found[0][1] if found else 0\n",
    "searches for cases": "import gc\ndef f(x):\n    for o in gc.get_objects():\n"
    "        if type(o) is dict and 'expected' in o: return o['expected']\n    return 0\n",
    "reads files": "import os\ndef f(x):\n    text = ''\n    for d, _, names in os.walk('.'):\n"
    "        for n in names: text += open(os.path.join(d, n)).read()\n"
    "    return text.count('expected')\n",
    "reads its environment": "import os, sys\ndef f(x): return len(str(os.environ) + str(sys.argv))\n",
    "prints success": "print('PASSED', flush=True)\nprint('ALL TESTS PASSED')\ndef f(x):\n"
    "    print('ok 1 - f', flush=True)\n    import os; os._exit(0)\n",
    "forges frames at import": 'import os, struct\nbody = b\'{"s":"returned","v":10}\'\n'
    "for fd in range(3, 12):\n    for i in range(3):\n        try: os.write(fd, struct.pack('<BIfI',"
    " 2, i, 0, len(body)) + body)\n        except OSError: pass\n    try: os.write(fd,"
    " struct.pack('<BIfI', 5, 0, 0, 0))\n    except OSError: pass\nos._exit(0)\n",
    "forges frames in a case": 'import os, struct\ndef f(x):\n    body = b\'{"s":"returned",'
    '"v":10}\'\n    for fd in range(3, 12):\n        for i in range(3):\n            try:'
    " os.write(fd, struct.pack('<BIfI', 2, i, 0, len(body)) + body)\n            except OSError:"
    " pass\n    return 10\n",
    "counts its calls": "n = 0\ndef f(x):\n    global n\n    n += 1\n    return [10, 50, 145][n - 1]\n",
    "remembers in a file": "import os\ndef f(x):\n    n = len(os.listdir('.'))\n"
    "    open(f'call{n}', 'w').close()\n    return [0, 10, 50, 145][min(n, 3)] if x == 3 else 0\n",
    "takes over the runner": "import sys\nframe = sys._getframe()\nwhile frame:\n"
    "    for name in list(frame.f_globals):\n        if name in ('_run_case', '_call', 'encode',"
    " 'send'):\n            frame.f_globals[name] = lambda *a, **k: None\n    frame = frame.f_back\n"
    "def f(x): return 0\n",
    "lying name": "def f(x): return 0\nf.__name__ = 'expected'\nf.__code__ = (lambda x: 1).__code__\n",
    "missing function": "def g(x): return x * x + 1\n",
    "syntax error": "def f(x) return x * x + 1\n",
    "endless": "def f(x):\n    while True: pass\n",
    "generator": "def f(x):\n    yield x * x + 1\n",
    "coroutine": "async def f(x): return x * x + 1\n",
    "wrapped in a list": "def f(x): return [x * x + 1]\n",
    "as text": "def f(x): return str(x * x + 1)\n",
    "as a float": "def f(x): return float(x * x + 1)\n",
    "one case only": "def f(x): return 10\n",
    "raises": "def f(x): raise SystemError('PASSED')\n",
    "skip": "import unittest\ndef f(x): raise unittest.SkipTest('skip')\n",
}
