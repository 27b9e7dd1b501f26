"""Programs that run outside the user's process: supervisor, zygotes and what is in the boxes.

They use the standard library only and are started by a bare interpreter (see ``launch``), so that
nothing of the user's process (keys, tests, CUDA state, imported modules) is ever inside a box.
"""
