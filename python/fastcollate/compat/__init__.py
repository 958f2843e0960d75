"""Drop-in replacements: one module per framework, with its names, signatures and exceptions."""

from fastcollate.common.names import list_names_of

list_names_of(__name__, f"import {__name__}.skyrl, or .nemo_rl, .transformers, .trl or .verl")
