"""Trees saved on one mesh and loaded on another, bit for bit; damage and wrong requests are errors."""

from __future__ import annotations

import collections
import dataclasses
import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.arrays.checkpoint import saving
from meshwright.core import dtypes
from meshwright.core.trace import Array
from meshwright.core.types import TensorType
from meshwright.errors import StorageError
from tests.arrays.random_places import places, shapes

MESH = mw.make_mesh((2, 4), ("x", "y"))


def on(*spec, mesh=MESH):
    return mw.NamedSharding(mesh, mw.P(*spec))


@pytest.fixture
def small_shards(monkeypatch):
    """Cut small arrays too."""
    monkeypatch.setattr(saving, "SMALL_SHARD_BYTES", 0)


def random_bits(shape, dtype, seed=0):
    """Every bit pattern that the dtype has, NaNs included; True and False for bool."""
    rng = np.random.default_rng(seed)
    if dtype == dtypes.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def array(data, place=None):
    x = Array(data, TensorType(data.shape, data.dtype))
    return x if place is None else mw.device_put(x, place)


def same_bits(x, y):
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_dtype_from_one_mesh_to_others_bit_for_bit(tmp_path, dtype, small_shards):
    data = random_bits((7, 12), dtype)
    mw.save(tmp_path / "a", {"w": array(data, on("x", "y")), "s": array(data[3, 3], on()), "e": array(data[:0])})
    others = [
        on(("y", "x"), None),  # uneven: 7 over 8
        on("y:(1)2", ("x", "y:(2)2")),
        on("a", "b", mesh=mw.make_mesh((3, 5), ("a", "b"))),
        on(None, "z", mesh=mw.make_mesh((16,), ("z",))),
        on(mesh=mw.make_mesh((1,), ("one",))),
        MESH.devices[1, 3],
    ]
    for place in others:
        found = mw.load(tmp_path / "a", like={"w": place, "s": None, "e": None})
        assert same_bits(found["w"], data)
        assert same_bits(found["s"], data[3, 3])
        assert same_bits(found["e"], data[:0])
        assert found["w"].sharding == (
            place if isinstance(place, mw.NamedSharding) else mw.device_put(1, place).sharding
        )


@st.composite
def moves(draw):
    shape = draw(shapes())
    return shape, draw(places(len(shape))), draw(places(len(shape))), draw(st.sampled_from(dtypes.ALL))


@given(moves(), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_random_meshes_shardings_and_file_sizes(tmp_path_factory, case, file_bytes):
    shape, before, after, dtype = case
    path = tmp_path_factory.mktemp("saved") / "a"
    data = random_bits(shape, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "SMALL_SHARD_BYTES", 0)
        mw.save(path, [array(data, before)], file_bytes=file_bytes)
    (found,) = mw.load(path, like=after)
    assert same_bits(found, data)
    assert found.sharding == mw.device_put(array(data), after).sharding


def test_the_layout_has_global_offsets_and_each_distinct_shard_once(tmp_path, small_shards):
    mw.save(tmp_path / "a", {"w": mnp.arange(10, device=on("x"))})
    layout = json.loads((tmp_path / "a" / "layout.json").read_text())["layout"]
    (leaf,) = layout["leaves"]
    assert leaf["sharding"] == {"mesh": '<["x"=2, "y"=4]>', "spec": [["x"]]}
    assert [(s["key"], s["offset"], s["shape"]) for s in leaf["shards"]] == [
        ("['w'][0:5]", [0], [5]),
        ("['w'][5:10]", [5], [5]),
    ]
    assert {f["name"] for f in layout["files"]} | {"layout.json"} == set(os.listdir(tmp_path / "a"))


def test_small_shards_are_stored_in_one_piece(tmp_path):
    mw.save(tmp_path / "a", mnp.arange(4096, device=mw.NamedSharding(mw.make_mesh((4096,), ("x",)), mw.P("x"))))
    layout = json.loads((tmp_path / "a" / "layout.json").read_text())["layout"]
    assert [s["shape"] for s in layout["leaves"][0]["shards"]] == [[4096]]


@mw.tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: object
    b: object


Pair = collections.namedtuple("Pair", "first second")

TREE = {
    "layers": [(np.ones(3, np.float32), None), {}],
    "numbers": (True, 3, -(2**70), 0.1, float("nan"), float("-inf"), 1 - 2j, "text"),
    1: [],
    "z": {"b": np.arange(2, dtype=np.int64), "a": np.float16(2)},
}


def test_structures_come_back(tmp_path):
    mw.save(tmp_path / "a", TREE)
    found = mw.load(tmp_path / "a")
    assert mw.tree.structure(found) == mw.tree.structure(TREE)
    assert list(found) == list(TREE)
    assert list(found["z"]) == ["b", "a"]
    assert repr(found["numbers"]) == repr(TREE["numbers"])
    assert all(type(a) is type(b) for a, b in zip(found["numbers"], TREE["numbers"], strict=True))
    assert same_bits(found["z"]["b"], TREE["z"]["b"])
    assert same_bits(found["z"]["a"], TREE["z"]["a"])
    assert mw.load(tmp_path / "a", like=TREE)["layers"][0][1] is None


def test_weak_types_come_back(tmp_path):
    mw.save(tmp_path / "a", mnp.asarray(2.0))
    assert mw.load(tmp_path / "a").weak_type


def test_registered_classes_come_back_through_like(tmp_path):
    tree = {"layer": Layer(mnp.ones((2, 3)), mnp.zeros(3)), "pair": Pair(1, mnp.ones(2))}
    mw.save(tmp_path / "a", tree)
    shapes = mw.tree.map(lambda x: x if isinstance(x, int) else mw.ShapeDtypeStruct(x.shape, x.dtype), tree)
    found = mw.load(tmp_path / "a", like=shapes)
    assert isinstance(found["layer"], Layer)
    assert isinstance(found["pair"], Pair)
    assert same_bits(found["layer"].w, tree["layer"].w)
    found = mw.load(tmp_path / "a", like={"layer": Layer(on("x"), None), "pair": Pair(None, on("y"))})
    assert found["layer"].w.sharding == on("x")
    assert found["pair"].second.sharding == on("y")


def test_places_come_from_like_or_from_the_mesh(tmp_path):
    mw.save(tmp_path / "a", {"w": mnp.ones((4, 6), device=on("x", "y")), "b": mnp.ones(6)})
    plain = mw.load(tmp_path / "a")
    assert not plain["w"].committed
    other = mw.make_mesh((3, 2), ("y", "x"))
    with mw.set_mesh(other):
        assert mw.load(tmp_path / "a")["w"].sharding == on("x", "y", mesh=other)
        assert not mw.load(tmp_path / "a")["b"].committed
        assert mw.load(tmp_path / "a", like={"w": mw.P("y"), "b": None})["w"].sharding == on("y", mesh=other)
    assert mw.load(tmp_path / "a", mesh=MESH)["w"].sharding == on("x", "y")
    with mw.set_mesh(mw.make_mesh((2,), ("q",))):
        assert not mw.load(tmp_path / "a")["w"].committed
    struct = mw.ShapeDtypeStruct((4, 6), "float32", sharding=on("y"))
    assert mw.load(tmp_path / "a", like={"w": struct, "b": plain["b"]})["w"].sharding == on("y")
    like = mnp.zeros((4, 6), device=on(None, "x"))
    assert mw.load(tmp_path / "a", like={"w": like, "b": on()})["w"].sharding == on(None, "x")


def test_saving_again_replaces_everything(tmp_path):
    mw.save(tmp_path / "a", [np.ones(100), np.ones(50)], file_bytes=100)
    (tmp_path / "a" / "0123456789abcdef-00000.safetensors").write_bytes(b"left by a save that was cut short")
    mw.save(tmp_path / "a", 3)
    assert os.listdir(tmp_path / "a") == ["layout.json"]
    assert mw.load(tmp_path / "a") == 3


# Errors


def message(function) -> str:
    with pytest.raises(mw.MeshwrightError) as caught:
        function()
    assert caught.value.where.startswith("test_saving.py:")
    return "\n".join(line for line in str(caught.value).split("\n") if not line.startswith("  at:"))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a"
    mw.save(path, {"w": np.ones((4, 6), np.float32), "b": [np.zeros(6, np.float32)], "n": 1})
    return path


def data_file(path):
    return next(path.glob("*.safetensors"))


def test_nothing_there(tmp_path):
    assert message(lambda: mw.load(tmp_path / "a")) == (
        f"There is no checkpoint at {tmp_path}/a.\n  why:  the path does not exist\n"
        f"  fix:  mw.save('{tmp_path}/a', tree)"
    )
    assert message(lambda: mw.load(tmp_path)) == (
        f"There is no checkpoint at {tmp_path}.\n  why:  it has no layout.json, which is written last: saving did not "
        f"get to its end, or it is something else\n  fix:  mw.save('{tmp_path}', tree)"
    )
    (tmp_path / "file").touch()
    assert message(lambda: mw.load(tmp_path / "file")) == (
        f"There is no checkpoint at {tmp_path}/file.\n  why:  it is a file; a checkpoint is a directory\n"
        "  fix:  pass the path that was given to mw.save"
    )


def test_a_missing_file(saved):
    name = data_file(saved).name
    data_file(saved).unlink()
    assert message(lambda: mw.load(saved)) == (
        f"The checkpoint {saved} lacks {name}.\n  why:  its layout names this file, and the file is not there\n"
        "  fix:  copy the whole directory, or load another checkpoint"
    )


def test_a_truncated_file(saved):
    file = data_file(saved)
    size = file.stat().st_size
    os.truncate(file, size - 1)
    assert message(lambda: mw.load(saved)) == (
        f"{file} is damaged.\n  why:  it has {size - 1} bytes, and {size} were written\n"
        "  fix:  copy the file again, or load another checkpoint"
    )


def test_a_changed_bit(saved):
    file = data_file(saved)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    assert message(lambda: mw.load(saved)) == (
        f"{file} is damaged.\n  why:  the checksum of ['w'][0:4,0:6] is not the one that was saved\n"
        "  fix:  copy the file again, or load another checkpoint"
    )


def test_any_changed_byte_is_noticed(saved):
    """Whatever byte of whatever file changes, what is loaded is what was saved, or nothing."""
    rng = np.random.default_rng(0)
    for file in sorted(saved.iterdir()):
        content = file.read_bytes()
        for at in rng.choice(len(content), min(len(content), 150), replace=False):
            changed = bytearray(content)
            changed[at] ^= int(rng.integers(1, 256))
            file.write_bytes(changed)
            try:
                found = mw.load(saved)
            except mw.MeshwrightError:
                continue
            assert same_bits(found["w"], np.ones((4, 6), np.float32))
            assert same_bits(found["b"][0], np.zeros(6, np.float32))
            assert found["n"] == 1
        file.write_bytes(content)


def test_a_changed_layout(saved):
    layout = saved / "layout.json"
    text = layout.read_text()
    for changed in (text.replace("6", "7", 1), text[:-1], "", "[]"):
        layout.write_text(changed)
        assert message(lambda: mw.load(saved)) == (
            f"{layout} cannot be read.\n  why:  its contents are not those that were written\n"
            "  fix:  copy the file again, or load another checkpoint"
        )
    layout.write_text(text.replace('"version": 1', '"version": 2'))
    assert message(lambda: mw.load(saved)) == (
        f"{layout} cannot be read.\n  why:  it has version 2, and this package reads version 1\n"
        "  fix:  pip install --upgrade meshwright"
    )


WHY = "like= has the structure, shapes and dtypes of what was saved, or stops at a sharding"
FIX = "load with a sharding there (or without like=), and convert what comes back"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"w": mw.ShapeDtypeStruct((4, 7), "float32")}, "['w'] was saved as float32[4,6], and like= has float32[4,7]"),
        ({"w": mw.ShapeDtypeStruct((4, 6), "int32")}, "['w'] was saved as float32[4,6], and like= has int32[4,6]"),
        ({"w": 1.0}, "['w'] was saved as float32[4,6], and like= has float"),
        ({"w": [None]}, "['w'] was saved as a leaf, and like= has list"),
        ({"b": mnp.ones(6)}, "['b'] was saved as list, and like= has float32[6]"),
        ({"b": (None,)}, "['b'] was saved as list, and like= has tuple"),
        ({"n": mnp.ones(6)}, "['n'] was saved as int, and like= has float32[6]"),
    ],
)
def test_like_of_another_type(saved, change, what):
    like = {"w": None, "b": None, "n": None, **change}
    assert message(lambda: mw.load(saved, like)) == f"{what} there.\n  why:  {WHY}\n  fix:  {FIX}"


def test_like_with_other_keys(saved):
    assert message(lambda: mw.load(saved, {"w": None, "c": None})) == (
        "The tree has other keys in like= than in the checkpoint.\n"
        "  why:  the checkpoint has no 'c' and also 'b', 'n'\n"
        "  fix:  give like= the keys 'w', 'b', 'n', or one sharding for all of them"
    )


def test_like_of_something_else(saved):
    assert message(lambda: mw.load(saved, {"w": object(), "b": None, "n": None})) == (
        "like= has a object at ['w'].\n  why:  it says where arrays go: by shardings, arrays, ShapeDtypeStructs, or "
        'None for as they were saved\n  fix:  like=mw.NamedSharding(mesh, mw.P("x", None))'
    )


def test_a_sharding_that_an_array_cannot_have(saved):
    assert message(lambda: mw.load(saved, on("x", "y"))) == (
        "The array ['b'][0] of shape (6,) cannot be put onto P('x', 'y').\n"
        "  why:  the sharding has 2 dims, the array 1\n  fix:  mw.P('x',)"
    )


def test_classes_come_back_as_plain_containers_without_like(tmp_path):
    tree = [Layer(1, {"pair": Pair(np.ones(4), 2)}), collections.OrderedDict(b=3, a=4), collections.deque([5])]
    mw.save(tmp_path / "a", tree)
    for like in (None, on("x")):
        found = mw.load(tmp_path / "a", like)
        assert same_bits(found[0]["b"]["pair"].pop("first"), np.ones(4))
        assert found == [{"w": 1, "b": {"pair": {"second": 2}}}, {"b": 3, "a": 4}, [5]]
    again = mw.load(tmp_path / "a", like=mw.load(tmp_path / "a"))
    assert again[1:] == [{"b": 3, "a": 4}, [5]]


def test_a_class_that_has_moved(tmp_path):
    there = collections.namedtuple("NT", "first second", module="__main__")
    mw.save(tmp_path / "a", there(1, np.ones(2)))
    found = mw.load(tmp_path / "a", like=Pair(None, on("x")))
    assert isinstance(found, Pair)
    assert found.first == 1
    assert same_bits(found.second, np.ones(2))
    other = collections.namedtuple("NT", "first third", module="__main__")
    assert message(lambda: mw.load(tmp_path / "a", like=other(None, None))) == (
        "The tree has other keys in like= than in the checkpoint.\n"
        "  why:  the checkpoint has no 'third' and also 'second'\n"
        "  fix:  give like= the keys 'first', 'second', or one sharding for all of them"
    )


def test_what_cannot_be_saved(tmp_path):
    assert message(lambda: mw.save(tmp_path / "a", {"f": object()})) == (
        "['f'] cannot be saved: its type is object.\n"
        "  why:  the leaves of a saved tree are arrays, numbers and strings\n"
        "  fix:  convert it to an array, or leave it out of the tree"
    )
    assert message(lambda: mw.save(tmp_path / "a", {"d": {(1, 2): 3}})) == (
        "A key (1, 2) of ['d'] cannot be saved.\n"
        "  why:  keys are written as JSON: strings, numbers, True, False and None\n"
        "  fix:  use a string as the key: '(1, 2)'"
    )
    assert message(lambda: mw.jit(lambda x: mw.save(tmp_path / "a", x))(1.0)).startswith("Saving needs the contents")
    assert not (tmp_path / "a").exists()


def test_where_nothing_can_be_saved(tmp_path):
    (tmp_path / "thesis.tex").touch()
    assert message(lambda: mw.save(tmp_path, 1)) == (
        f"Nothing can be saved to {tmp_path}.\n  why:  the directory holds other things: thesis.tex\n"
        f"  fix:  mw.save('{tmp_path}/checkpoint', tree)"
    )
    assert message(lambda: mw.save(tmp_path / "thesis.tex", 1)) == (
        f"Nothing can be saved to {tmp_path}/thesis.tex.\n"
        "  why:  it is a file, or in one; a checkpoint is a directory\n"
        f"  fix:  mw.save('{tmp_path}/thesis.tex.checkpoint', tree)"
    )


def test_a_layout_of_another_program_is_kept(tmp_path):
    for text in ('{"format": "other"}', "[1]", "", '{"a": ' * 10**5):
        (tmp_path / "layout.json").write_text(text)
        assert message(lambda: mw.save(tmp_path, 1)) == (
            f"Nothing can be saved to {tmp_path}.\n"
            "  why:  the directory holds other things: a layout.json of another program\n"
            f"  fix:  mw.save('{tmp_path}/checkpoint', tree)"
        )
        assert (tmp_path / "layout.json").read_text() == text
        assert os.listdir(tmp_path) == ["layout.json"]
    (tmp_path / "layout.json").write_text('{"format": "meshwright", "ver')  # a damaged one of our own
    mw.save(tmp_path, 1)
    assert mw.load(tmp_path) == 1


def test_what_cut_short_saves_left_is_removed(tmp_path):
    for name in (".tmpAb3dE9", "0123456789abcdef-layout.json", "0123456789abcdef-00007.safetensors"):
        (tmp_path / name).write_bytes(b"left")
    mw.save(tmp_path, 3)
    assert os.listdir(tmp_path) == ["layout.json"]


def test_other_programs_read_the_files(tmp_path):
    tree = {"b": np.ones(3, np.float64), "a": np.array(True), "c": np.arange(5, dtype=np.int8), "e": np.ones((2, 2))}
    mw.save(tmp_path, tree)
    found = safetensors.numpy.load_file(data_file(tmp_path))
    assert len(found) == 4
    assert same_bits(found["['a'][]"], tree["a"])
    assert same_bits(found["['e'][0:2,0:2]"], tree["e"])


@pytest.mark.parametrize("path", [None, 3, b"a", "", "a\0b", "\ud800", "x" * 300, "/dev/null/a", "/proc/nothing"])
@pytest.mark.parametrize("do", [lambda path: mw.save(path, 1), mw.load], ids=["save", "load"])
def test_paths_that_are_none(path, do):
    with pytest.raises(StorageError) as caught:
        do(path)
    assert caught.value.where
    assert caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("calls", range(6))
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, calls):
    left = [calls]

    def fsync(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tree = [np.ones(3), np.ones(4)]
    mw.save(tmp_path / "old", 1)
    before = os.listdir(tmp_path / "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        if calls < 4:
            assert message(lambda: mw.save(tmp_path / "old", tree, file_bytes=1)) == (
                f"Nothing can be saved to {tmp_path}/old.\n  why:  No space left on device\n"
                "  fix:  free some space, or save to another disk"
            )
            assert os.listdir(tmp_path / "old") == before
            assert mw.load(tmp_path / "old") == 1
        left[0] = calls
        message(lambda: mw.save(tmp_path / "new" / "deep", tree, file_bytes=1))
    if calls < 5:
        assert not (tmp_path / "new").exists()


def test_trees_that_are_too_deep(tmp_path):
    tree = []
    tree.append(tree)
    what = "The tree is nested more than 100 deep, and cannot be saved."
    assert message(lambda: mw.save(tmp_path / "a", tree)).startswith(what)
    tree = 1
    for _ in range(100):
        tree = {"a": tree}
    mw.save(tmp_path / "a", tree)
    assert mw.load(tmp_path / "a") == tree
    assert message(lambda: mw.save(tmp_path / "b", [tree])).startswith(what)
    assert not (tmp_path / "b").exists()


def test_integers_of_any_length(tmp_path):
    numbers = [10**5000, -(10**5000), 10**570, 2**1900, 2**1901 - 1]
    mw.save(tmp_path, numbers)
    assert mw.load(tmp_path) == numbers
    assert message(lambda: mw.save(tmp_path, {10**5000: 1})).startswith("A key of 16610 bits of the tree cannot")
    assert message(lambda: mw.save(tmp_path, {float("nan"): 1})).startswith("A key nan of the tree cannot")


def test_arrays_that_cannot_be_saved(tmp_path):
    for data in (np.ones(2, np.longdouble), np.array(["a"]), np.ones(2, ">f4"), np.array([None]), np.datetime64("now")):
        assert message(lambda data=data: mw.save(tmp_path / "a", {"w": data})).startswith(
            f"['w'] cannot be saved: its dtype is {data.dtype}.\n"
        )
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    assert message(lambda: mw.save(tmp_path / "a", masked)).startswith(
        "The tree cannot be saved: it is a masked array."
    )
    assert message(lambda: mw.save(tmp_path / "a", 1, file_bytes=0)).startswith("file_bytes is 0.")
    assert not (tmp_path / "a").exists()


def test_threads_that_save_to_one_path(tmp_path):
    def work(number):
        for step in range(10):
            mw.save(tmp_path / "new" / "a", [number, np.full(50, number), np.full(step, number)], file_bytes=1)
            found, whole, _ = mw.load(tmp_path / "new" / "a")
            assert (np.asarray(whole) == found).all()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    found = mw.load(tmp_path / "new" / "a")
    assert len(os.listdir(tmp_path / "new" / "a")) == len(found)
