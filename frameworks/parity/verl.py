"""verl."""

from fastcollate.compat import verl as compat
from frameworks.parity.framework import Framework

VERL = Framework("verl", "verl")
VERL.not_compared.update(dict.fromkeys(compat.__all__, "not yet"))
