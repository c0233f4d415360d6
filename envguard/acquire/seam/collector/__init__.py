"""Raw facts of a machine: the only code that touches it, and the code that travels to another.

`operations` is the table of what may be asked; the modules beside it answer. They record facts and parse nothing:
what a fact means is decided by the readers in `envguard.acquire`, which get the same facts from here, from a far
machine, or from a bundle. The live host calls the operations directly; `serve` answers the same calls over a pipe.

`collect --via` sends these modules' texts to a machine where nothing but `python3` is sure to be there
(`envguard.acquire.seam.travelling`). So everything here is standard library and Python 3.8 syntax, and a module names
its siblings relatively: the package has another name over there.

Nothing here changes the machine: no file is written, no `__pycache__` is made, no lock is taken.
"""
