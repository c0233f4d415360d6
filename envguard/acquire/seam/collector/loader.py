"""The head of the program that travels: it imports a package from texts in memory, since there are no files of it."""

import sys
from importlib.machinery import ModuleSpec


class Sources:
    """Finder and loader of the modules in `texts`, {full name: source}; a name without a dot is the package's."""

    def __init__(self, texts):
        self.texts = texts

    def find_spec(self, name, path=None, target=None):
        if name not in self.texts:
            return None
        # No base class: `importlib.abc` costs an old Python more to import than all of this program.
        return ModuleSpec(name, self, is_package="." not in name)  # type: ignore[arg-type]

    def create_module(self, spec):
        return None  # an ordinary one

    def exec_module(self, module):
        name = module.__name__
        exec(compile(self.texts[name], name.replace(".", "/") + ".py", "exec", dont_inherit=True), module.__dict__)


def provide(texts):
    """Makes the modules importable, before anything of that name that may be installed here."""
    sys.meta_path.insert(0, Sources(texts))
