"""Merged turns, given as a plan or a policy; and columns that were merged before."""

import dataclasses

import numpy as np

import fastcollate as fc
from fastcollate._fastcollate import SomeTokens
from fastcollate.rows.captured import runs_of
from fastcollate.testing.reference.fields import is_none


def merge_of(inputs, options):
    """Return the argument ``merge``: the policy by its name if that is all, or a plan."""
    if isinstance(options["policy"], str):
        return options["policy"]
    return plan_of(inputs, options)


def plan_of(inputs, options):
    names = ("prompts", "responses", "trajectory_ids", "is_last_step")
    return fc.merge_turns(**{name: inputs[name] for name in names}, **options)


def with_holes(fields):
    """Return fields of the loops, whose captured rows may lack tokens anywhere."""

    def of_some(field):
        if not isinstance(field, (fc.RoutedExperts, fc.Captured)):
            return field
        flags = [not is_none(values) for row in field.rows for values in row]
        runs = runs_of(np.array(flags, bool), np.cumsum([0, *map(len, field.rows)]))
        return dataclasses.replace(field, rows=SomeTokens.within(field.rows, runs))

    return {key: of_some(field) for key, field in fields.items()}
