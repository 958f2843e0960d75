"""The argument ``advantages``: one number per row or values per token, against the loops."""

import numpy as np
import pytest

import fastcollate as fc

PROMPTS, RESPONSES, MASKS = [[1, 2], [3]], [[4], [5, 6, 7]], [[1], [0, 1, 1]]
ROWS = {"prompts": PROMPTS, "responses": RESPONSES, "pad_token_id": 0, "array_type": "numpy"}

pytestmark = pytest.mark.filterwarnings("ignore:.*policy=.realign. masked", "ignore:.*split")


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dtypes(dtype):
    batch = fc.build_batch(**ROWS, advantages=[0.1, -1], dtypes={"advantages": dtype})
    assert batch.advantages.dtype == dtype
    assert batch.advantages[0, -1] == np.array(0.1, dtype)


def test_a_tree(array_type):
    rows = {"prompts": [[1, 2], [1, 2]], "responses": [[3, 4], [3, 5, 6]], "pad_token_id": 0}
    batch = fc.build_batch(
        **rows, advantages=[1, 2], layout=fc.Tree(capacity=16), array_type=array_type
    )
    assert batch.advantages.tolist() == [1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"advantages": [1]}, r"advantages has 1 row"),
        ({"advantages": [[1], [2]]}, r"advantages\[1\] has 1 item, but responses\[1\] has 3"),
        ({"advantages": [1, [1, 2, 3]]}, r"advantages\[1\]"),
        ({"advantages": [1, "x"]}, r"advantages\[1\] is 'x'"),
        ({"advantages": [1, None]}, r"advantages\[1\]"),
        ({"advantages": [1, 2], "dtypes": {"advantages": "int64"}}, "advantages"),
        (
            {"advantages": fc.Field([1, 2], spread="trained")},
            r"advantages is an fc.Field with spread='trained', .*pass the numbers themselves",
        ),
        (
            {"advantages": [1, 2], "fields": {"advantages": fc.Field([[1], [1, 2, 3]])}},
            "'advantages': the argument advantages and fields",
        ),
    ],
)
def test_what_cannot_be(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        fc.build_batch(**ROWS, **arguments)


def test_rows_of_a_builder_have_one_kind():
    builder = fc.BatchBuilder(pad_token_id=0)
    builder.add([1], [2], advantages=1)
    with pytest.raises(TypeError, match=r"advantages\[1\] is one per resp.*\[0\] is one number"):
        builder.add([1], [2], advantages=[1.0])
