"""SkyRL."""

from fastcollate.compat import skyrl as compat
from frameworks.parity.framework import Framework

SKYRL = Framework("SkyRL", "skyrl")
SKYRL.not_compared.update(dict.fromkeys(compat.__all__, "not yet"))
