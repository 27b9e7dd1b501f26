"""Programs that do nothing wrong and must work."""

from __future__ import annotations

from hostile.row import BOXED, Row

LEGITIMATE = [
    Row(
        "threads",
        """
import threading
threads = [threading.Thread(target=print, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]; print("joined")
""",
        "OK",
        prints="joined",
    ),
    Row(
        "asyncio",
        """
import asyncio
async def main(): return await asyncio.gather(*(asyncio.sleep(0, i) for i in range(4)))
print(asyncio.run(main()))
""",
        "OK",
        prints="[0, 1, 2, 3]",
    ),
    Row(
        "multiprocessing",
        """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))
""",
        "OK",
        prints="[1, 2]",
        levels=BOXED,
    ),
    Row(
        "subprocess",
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(6*7)'], capture_output=True).stdout)",
        "OK",
        prints="42",
    ),
    Row(
        "standard input by input()", "print(input() + input())", "OK", prints="ab", stdin=b"a\nb\n"
    ),
    Row(
        "standard input by buffer",
        """
import sys
r = sys.stdin.buffer.readline
print(r(), r(), r())
""",
        "OK",
        prints="b'1\\n' b'2\\n' b'3'",
        stdin=b"1\n2\n3",
    ),
    Row(
        "standard input by fileinput",
        "import fileinput\nprint(sum(int(x) for x in fileinput.input()))",
        "OK",
        prints="6",
        stdin=b"1\n2\n3\n",
    ),
    Row(
        "two megabytes of input",
        "import sys\nprint(len(sys.stdin.read()))",
        "OK",
        prints="2000000",
        stdin=b"x" * 2_000_000,
    ),
    Row("its own file", "print(open(__file__).read().count('open'))", "OK", prints="2"),
    Row(
        "temporary files",
        """
import tempfile
with tempfile.TemporaryDirectory() as d:
    open(d + "/x", "w").write("y"); print(open(d + "/x").read())
""",
        "OK",
        prints="y",
    ),
    Row(
        "numbers",
        "print(float('inf'), float('nan'), 2**200, 0.1 + 0.2, 1e400, -0.0)",
        "OK",
        prints="0.30000000000000004",
    ),
    Row("unicode names", "größe = 3\nprint('ß∂ƒ', größe)", "OK", prints="ß∂ƒ 3"),
    Row(
        "legal recursion", "def f(n): return n and 1 + f(n - 1)\nprint(f(900))", "OK", prints="900"
    ),
    Row(
        "files of the job",
        "print(open('data/in.txt').read())\nimport mod\nprint(mod.x)",
        "OK",
        prints="hello\n7",
        files={"data/in.txt": b"hello", "mod.py": b"x = 7"},
    ),
    Row("kill itself", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "RE"),
    Row("alarm", "import signal, time\nsignal.alarm(1)\ntime.sleep(5)", "RE"),
    Row("exec", "import os\nos.execv('/bin/echo', ['echo', 'replaced'])", "OK", prints="replaced"),
]
