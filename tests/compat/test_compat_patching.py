"""Replacement of a framework's functions, on a made-up framework."""

import functools
import importlib
import logging
import os
import signal
import sys
import threading
from textwrap import dedent
from types import ModuleType

import pytest
from raising import raises

from fastcollate.compat import patching
from fastcollate.compat.patching import Patched, Patcher, Replacement

FILES = {
    "made_up/__init__.py": """
        def __getattr__(name):  # imports `scale` on access, as lazy modules of Hugging Face do
            if name != "scale":
                raise AttributeError(name)
            from made_up.numbers import scale
            globals()[name] = scale
            return scale
    """,
    "made_up/numbers.py": """
        def double(value):
            return value + value

        def scale(value):
            return 10 * value

        class Counter:
            pass
    """,
    "made_up/trainer.py": """
        from made_up.numbers import double

        def train(value):
            return double(value)
    """,
    "made_up/worker.py": """
        from made_up.numbers import double as twice, scale
    """,
    "made_up/sampler.py": """
        from no_such_package import anything

        def sample():
            pass
    """,
    "made_up-1.2.dist-info/METADATA": """
        Metadata-Version: 2.1
        Name: made_up
        Version: 1.2
    """,
}


def double(value):
    return 2 * value


def scale(value):
    return value * 10


def sample():
    pass


class Counter:
    pass


TABLE = [
    Replacement(
        "made_up.numbers", "double", double, bound_in=("made_up.trainer", "made_up.worker")
    ),
    Replacement("made_up.numbers", "scale", scale, bound_in=("made_up", "made_up.worker")),
    Replacement("made_up.numbers", "Counter", Counter),
    Replacement("made_up.numbers", "triple", object(), versions=("2.0",)),
]


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text).lstrip())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the path with the framework, which is forgotten at the end."""
    write(tmp_path, FILES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(patching.VERIFIED, "made_up", ("1.1", "1.2"))
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_up"]:
        del sys.modules[name]


def patcher(table=TABLE):
    return Patcher(
        "MadeUp",
        package="made_up",
        compat="fastcollate.compat.made_up",
        replacements=table,
    )


def bindings():
    """Return all attributes of the framework's modules, by identity."""
    return {
        (name, attribute): id(value)
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "made_up"
        for attribute, value in vars(module).items()
    }


def test_every_module_that_bound_a_name_is_patched_and_restored(folder):
    import made_up.numbers
    import made_up.trainer

    assert made_up.scale(2) == 20  # bound on access
    before = bindings()
    made_up_patcher = patcher()
    patched = made_up_patcher.patch()
    assert made_up.numbers.double is made_up.trainer.double is double
    assert made_up.numbers.scale is made_up.scale is scale
    assert made_up.numbers.Counter is Counter
    assert patched.bindings == (
        "made_up.numbers.double",
        "made_up.trainer.double",
        "made_up.numbers.scale",
        "made_up.scale",
        "made_up.numbers.Counter",
    )
    assert str(patched).splitlines()[:2] == [
        "MadeUp 1.2, replaced by fastcollate:",
        "  made_up.numbers.double",
    ]
    made_up_patcher.unpatch()
    assert bindings() == before


def test_modules_imported_later_are_patched_and_restored(folder):
    made_up_patcher = patcher()
    patched = made_up_patcher.patch()
    assert patched.bindings == tuple(
        f"made_up.numbers.{name}" for name in ("double", "scale", "Counter")
    )
    import made_up.trainer
    import made_up.worker

    assert made_up.trainer.double is made_up.worker.twice is double
    assert made_up.worker.scale is made_up.scale is scale
    mine = ModuleType("mine")
    sys.modules["mine"] = mine
    mine.double = double
    made_up_patcher.unpatch()
    assert sys.modules.pop("mine").double is double, "not a module of the framework"
    numbers = made_up.numbers
    assert numbers.double is not double
    assert made_up.trainer.double is made_up.worker.twice is numbers.double
    assert made_up.worker.scale is made_up.scale is numbers.scale
    assert numbers.scale is not scale


def test_an_alias_in_a_module_imported_before_is_an_error(folder):
    # The table names attributes, and `worker` binds `double` as `twice`.
    importlib.import_module("made_up.worker")

    before = bindings()
    with pytest.raises(RuntimeError, match=r"worker does not import double"):
        patcher().patch()
    assert bindings() == before


def test_calls_are_counted(folder):
    import made_up.numbers

    original = made_up.numbers.double
    made_up_patcher = patcher()
    first = made_up_patcher.patch()
    assert made_up_patcher.patch() is first
    made_up_patcher.unpatch()
    assert made_up.numbers.double is double
    made_up_patcher.unpatch()
    assert made_up.numbers.double is original
    with pytest.raises(RuntimeError, match=r"^MadeUp is not patched; call .*made_up.patch\(\) fir"):
        made_up_patcher.unpatch()
    with made_up_patcher.patch() as patched:
        assert isinstance(patched, Patched)
        with made_up_patcher.patch():
            pass
        assert made_up.numbers.double is double
    assert made_up.numbers.double is original


def test_the_end_of_a_with_statement_keeps_its_error(folder):
    with pytest.raises(KeyError), patcher().patch():
        raise KeyError


def test_an_unknown_version_is_refused(folder, monkeypatch):
    monkeypatch.setitem(patching.VERIFIED, "made_up", ("1.1", "1.3"))
    with pytest.raises(RuntimeError) as error:
        patcher().patch()
    assert str(error.value) == (
        "MadeUp 1.2 is installed, but fastcollate.compat.made_up.patch() has been verified with "
        "1.1 and 1.3 only; pip install made_up==1.3, or call the functions of "
        "fastcollate.compat.made_up yourself"
    )
    assert "made_up" not in sys.modules


def test_a_local_version_is_that_version(folder):
    metadata = folder / "made_up-1.2.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.2+cu130"))
    with patcher().patch() as patched:
        assert patched.version == "1.2+cu130"


def test_a_missing_framework_is_an_import_error(folder, monkeypatch):
    monkeypatch.setitem(patching.VERIFIED, "made_down", ("3.0",))
    missing = Patcher("MadeDown", package="made_down", compat="x", replacements=[])
    with pytest.raises(ImportError, match=r"^MadeDown is not installed; pip install .*==3\.0$"):
        missing.patch()
    missing = Patcher("MadeDown", package="made_down", compat="x", replacements=[], python="3.12")
    with pytest.raises(ImportError, match=r"==3\.0 in Python 3\.12 or later$"):
        missing.patch()


@pytest.mark.parametrize("metadata", [None, "Name: made_up\n"])
def test_a_framework_without_a_version_is_refused(folder, metadata):
    file = folder / "made_up-1.2.dist-info" / "METADATA"
    file.unlink()
    if metadata is None:
        file.parent.rmdir()
    else:
        file.write_text(metadata)
    with pytest.raises(RuntimeError, match=r"can be imported, but its version cannot be verified"):
        patcher().patch()


def test_a_stand_in_of_the_framework_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "made_down", ModuleType("made_down"))
    monkeypatch.setitem(patching.VERIFIED, "made_down", ("3.0",))
    stand_in = Patcher("MadeDown", package="made_down", compat="x", replacements=TABLE)
    with pytest.raises(RuntimeError, match=r"can be imported, but its version cannot be verified"):
        stand_in.patch()


@pytest.mark.parametrize("entry", [object(), ModuleType("made_up.trainer")])
def test_stand_ins_of_modules_are_refused(folder, monkeypatch, entry):
    monkeypatch.setitem(sys.modules, "made_up.trainer", entry)
    with pytest.raises(RuntimeError, match=r"made_up\.trainer does not import double"):
        patcher().patch()


@pytest.mark.parametrize(
    ("module", "name", "replace", "by"),
    [
        ("numbers", "scale", lambda _: lambda value: value, ".*lambda"),
        ("numbers", "scale", lambda own: functools.wraps(own)(lambda value: own(value)), ""),
        ("numbers", "Counter", lambda _: Counter, "test_compat_p"),
        ("numbers", "double", lambda _: double, r"test_compat_patching\.doub"),
        ("trainer", "double", lambda _: abs, r"builtins\.abs"),
    ],
)
def test_what_has_been_replaced_is_refused(folder, module, name, replace, by):
    theirs = importlib.import_module(f"made_up.{module}")
    setattr(theirs, name, replace(getattr(theirs, name)))
    before = bindings()
    message = rf"{module}\.{name} has already been replaced by {by}"
    with pytest.raises(RuntimeError, match=message):
        patcher().patch()
    assert bindings() == before


def test_a_module_may_have_two_names(folder, caplog, monkeypatch):
    import made_up.trainer

    monkeypatch.setitem(sys.modules, "alias", made_up.trainer)
    with patcher().patch():
        assert made_up.trainer.double is double
    assert caplog.text == ""


def test_modules_that_differ_from_the_table_are_refused(folder):
    importlib.import_module("made_up.trainer")

    for table, difference in [
        ([*TABLE, Replacement("made_up.numbers", "halve", abs)], "numbers has no halve"),
        ([*TABLE, Replacement("made_up.letters", "upper", abs)], "there is no module made_up.lett"),
        ([TABLE[2]._replace(bound_in=("made_up.trainer",))], "trainer does not import Counter"),
    ]:
        before = bindings()
        with pytest.raises(RuntimeError, match=f"^MadeUp 1.2 differs .*: .*{difference}") as error:
            patcher(table).patch()
        assert "\n" not in str(error.value)
        assert bindings() == before, difference


def test_names_that_are_not_in_the_table_are_refused(folder):
    importlib.import_module("made_up.trainer")

    before = bindings()
    message = (
        r"^made_up\.trainer\.double is MadeUp's own function, too, .*made_up\.patch\(\) before"
    )
    with pytest.raises(RuntimeError, match=message):
        patcher([TABLE[0]._replace(bound_in=())]).patch()
    assert bindings() == before


def test_modules_that_are_being_imported_take_the_replacement(folder, monkeypatch):
    made_up_patcher = patcher()
    hook = ModuleType("hook")
    hook.patch = made_up_patcher.patch
    monkeypatch.setitem(sys.modules, "hook", hook)
    trainer = "import hook\nhook.patch()\nfrom made_up.numbers import double\n"
    write(folder, {"made_up/trainer.py": trainer})
    import made_up.trainer

    assert made_up.trainer.double is double
    made_up_patcher.unpatch()
    assert made_up.trainer.double is made_up.numbers.double is not double


def test_what_cannot_be_imported_is_left_out(folder, caplog):
    made_up_patcher = patcher([*TABLE, Replacement("made_up.sampler", "sample", sample)])
    with made_up_patcher.patch() as patched:
        assert patched.skipped == (
            "made_up.sampler.sample (ModuleNotFoundError: No module named 'no_such_package')",
        )
        assert "not replaced: made_up.sampler.sample (" in str(patched)
    assert "leaves out functions that cannot be imported: made_up.sampler.sample" in caplog.text
    with pytest.raises(ImportError, match=r"^MadeUp 1.2 cannot be imported: made_up.sampler.samp"):
        patcher([Replacement("made_up.sampler", "sample", sample)]).patch()


def test_modules_outside_of_the_framework_are_named(folder, caplog, monkeypatch):
    import made_up.numbers

    mine = ModuleType("mine")
    mine.twice = made_up.numbers.double
    monkeypatch.setitem(sys.modules, "mine", mine)
    monkeypatch.setitem(sys.modules, "broken", None)
    with caplog.at_level(logging.WARNING), patcher().patch():
        assert mine.twice is not double
    assert [record.getMessage() for record in caplog.records] == [
        "mine.twice stays MadeUp's own function, since it was imported before "
        "fastcollate.compat.made_up.patch(); call patch() first"
    ]


def test_the_log_has_what_was_replaced(folder, caplog):
    with caplog.at_level(logging.INFO), patcher().patch() as patched:
        pass
    assert caplog.messages == [str(patched)]


@pytest.mark.parametrize("module", ["made_up.numbers", "made_up.trainer"])
def test_what_others_replaced_since_is_not_restored(folder, module):
    import made_up.trainer

    before = bindings()
    made_up_patcher = patcher()
    made_up_patcher.patch()
    theirs = sys.modules[module]
    theirs.double = abs
    with raises(rf"RuntimeError: {module}.double has been replaced by builtins.abs si"):
        made_up_patcher.unpatch()
    assert made_up.numbers.scale is scale, "all is left as it was"
    theirs.double = double
    made_up_patcher.unpatch()
    assert bindings() == before


def test_threads(folder):
    import made_up.numbers
    import made_up.trainer

    before = bindings()
    made_up_patcher = patcher()
    start = threading.Barrier(8)
    wrong = []

    def work():
        start.wait()
        for _ in range(20):
            with made_up_patcher.patch():
                if made_up.numbers.double is not double or made_up.trainer.double is not double:
                    wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert bindings() == before


@pytest.mark.parametrize("reloaded", ["made_up.numbers", "made_up.trainer"])
def test_a_module_that_was_loaded_again_has_its_own_functions(folder, reloaded):
    import made_up.numbers
    import made_up.trainer

    made_up_patcher = patcher()
    made_up_patcher.patch()
    importlib.reload(sys.modules[reloaded])
    if reloaded == "made_up.trainer":  # it took the replacement again
        made_up_patcher.patch()
        made_up_patcher.unpatch()
    else:
        with raises(r"RuntimeError: numbers\.double has been loaded or replaced since"):
            made_up_patcher.patch()
    made_up_patcher.unpatch()
    for module in made_up.numbers, made_up.trainer:
        assert module.double.__module__ == "made_up.numbers"


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_can_patch_while_threads_do(folder):
    made_up_patcher = patcher()
    made_up_patcher.patch()
    stop = threading.Event()

    def work():
        while not stop.is_set():
            with made_up_patcher.patch():
                pass

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            if (child := os.fork()) == 0:
                signal.alarm(20)
                made_up_patcher.patch()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
