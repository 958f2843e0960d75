"""Merged turns, given as a plan or a policy."""

import fastcollate as fc


def merge_of(inputs, options):
    """Return the argument ``merge``: the policy by its name if that is all, or a plan."""
    if isinstance(options["policy"], str):
        return options["policy"]
    return plan_of(inputs, options)


def plan_of(inputs, options):
    names = ("prompts", "responses", "trajectory_ids", "is_last_step")
    return fc.merge_turns(**{name: inputs[name] for name in names}, **options)
