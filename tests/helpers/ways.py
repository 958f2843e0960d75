"""The batch of columns by other ways: row by row, of samples, and of the blocks of workers."""

import dataclasses

from worker_blocks import split, through_blocks

import fastcollate as fc
from fastcollate.rows.fields import row_of

SINGULAR = {
    "prompts": "prompt",
    "responses": "response",
    "sequences": "sequence",
    "prompt_lens": "prompt_len",
    "uids": "uid",
    "trajectory_ids": "trajectory_id",
}


def rows_of(columns):
    """Yield the arguments of `BatchBuilder.add`."""
    fields = columns.get("fields", {})
    columns = {
        name: column for name, column in columns.items() if name != "fields" and column is not None
    }
    for row in range(len(next(iter(columns.values())))):
        own = {
            SINGULAR.get(name, name): (
                row_of(column, row) if isinstance(column, fc.Field) else column[row]
            )
            for name, column in columns.items()
        }
        yield own | {"fields": {key: row_of(field, row) for key, field in fields.items()}}


def filled(columns, **options):
    builder = fc.BatchBuilder(**options)
    for row in rows_of(columns):
        builder.add(**row)
    return builder


def by_builder(columns, **options):
    return filled(columns, **options).finish()


def by_collator(columns, **options):
    samples, fields = [], {}
    for sample in rows_of(columns):
        for key, field in sample.pop("fields").items():
            names = [dataclasses.fields(field)[0].name]
            names += ["starts"] * (getattr(field, "starts", None) is not None)
            sample |= {f"{name} of {key}": getattr(field, name) for name in names}
            fields[key] = dataclasses.replace(field, **{n: f"{n} of {key}" for n in names})
        samples.append(sample)
    return fc.Collator(**options, fields=fields)(samples)


def by_blocks(columns, shard, **options):
    """Build a shard of the rows, of which each worker has some."""
    blocks = split(columns, [0, 1, len(columns["prompts"])])
    return through_blocks(blocks, lambda _: shard, options)[0]
