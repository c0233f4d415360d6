"""Imported by the server that starts processes: inductor asks once what this CPU can do, not in each of them.

It asks by compiling and loading a library for each set of instructions, and takes longer than over a drafter.
"""

from __future__ import annotations

from torch._inductor.cpu_vec_isa import pick_vec_isa

pick_vec_isa()
