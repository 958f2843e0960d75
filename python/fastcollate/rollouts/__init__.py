"""Rollouts as engines and traces give them: calls of a model, read from JSON or from objects.

- :func:`parse` reads responses of vLLM, SGLang and servers of OpenAI's API from bytes, and traces
  by a :class:`Schema`.
- :func:`read` reads the outputs of an engine in the same process.
- :class:`Calls` is what both return: columns for :func:`fastcollate.build_batch` and
  :func:`fastcollate.merge_turns`.
"""

from fastcollate.common.names import list_names_of
from fastcollate.rollouts.calls import Calls
from fastcollate.rollouts.objects import read
from fastcollate.rollouts.parsing import parse
from fastcollate.rollouts.schema import Schema
from fastcollate.rollouts.sources import SOURCES

__all__ = ["SOURCES", "Calls", "Schema", "parse", "read"]

list_names_of(__name__)
