"""Plans of tables, as pickle restores them."""

from fastcollate._fastcollate import Merge
from fastcollate.plan.merging import MergePlan


def restore_merge(tables):
    """Return the merge plan of the tables of `MergePlan.to_dict`."""
    return MergePlan(Merge._from_dict(tables))
