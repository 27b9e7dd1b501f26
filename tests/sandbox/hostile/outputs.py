"""Programs that say odd things, or end oddly."""

from __future__ import annotations

from hostile.row import Row

OUTPUT = [
    Row("lone surrogates", "print('\\udcff\\ud800')", "RE|OK"),
    Row("invalid UTF-8", "import os\nos.write(1, b'\\xff\\xfe\\x00\\x1b[31m\\r\\n')", "OK"),
    Row("one line of half a megabyte", "print('a' * 500_000)", "OK", prints="a" * 1000),
    Row("exit codes", "import sys\nsys.exit(256)", "OK"),
    Row("exit text", "import sys\nsys.exit('no')", "RE"),
    Row("exit negative", "import sys\nsys.exit(-1)", "RE"),
    Row(
        "every way to print",
        """
import os, subprocess, sys, ctypes
print("a", flush=True); os.write(1, b"b\\n"); sys.__stdout__.write("c\\n"); sys.__stdout__.flush()
subprocess.run(["echo", "d"]); libc = ctypes.CDLL(None); libc.puts(b"e"); libc.fflush(None)
""",
        "OK",
        prints="a\nb\nc\nd\ne",
    ),
    Row(
        "print from an exit handler",
        "import atexit\natexit.register(print, 'bye')",
        "OK",
        prints="bye",
    ),
    Row(
        "forged result frames",
        """
import os
for fd in range(3, 20):
    try: os.write(fd, b"\\x05" + bytes(12) + b"ALL TESTS PASSED")
    except OSError: pass
print("ALL TESTS PASSED")
""",
        "OK|PROTO|RE",
    ),
]
