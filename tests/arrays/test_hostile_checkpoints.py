"""Checkpoints made to mislead, their checksums recomputed: one clear error, whatever they say."""

from __future__ import annotations

import copy
import json
import os
import socket
import zlib

import numpy as np
import pytest

import meshwright as mw
from meshwright.arrays.checkpoint import layout as saved_layout
from meshwright.arrays.checkpoint import saving
from meshwright.errors import StorageError

MESH = mw.make_mesh((2, 4), ("x", "y"))
NAME = "0123456789abcdef-00000.safetensors"


def write_layout(path, layout, **outer):
    crc = zlib.crc32(json.dumps(layout).encode())
    (path / "layout.json").write_text(
        json.dumps({"format": "meshwright", "version": 1, "crc32": crc, "layout": layout, **outer})
    )


def read_layout(path):
    return json.loads((path / "layout.json").read_text())["layout"]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "SMALL_SHARD_BYTES", 0)
    path = tmp_path / "a"
    w = mw.device_put(np.arange(48, dtype=np.float32).reshape(6, 8), mw.NamedSharding(MESH, mw.P("x", "y")))
    tree = {"w": w, "c": np.ones(3, np.complex64), "flag": np.array([True, False]), "n": [1, 2.5, 1j, "s", True]}
    mw.save(path, tree, file_bytes=100)
    return path


def refused(path, **how):
    with pytest.raises(StorageError) as caught:
        mw.load(path, **how)
    error = caught.value
    assert error.where.startswith("test_hostile_checkpoints.py:")
    assert error.why
    assert error.fix
    return str(error)


def put(*keys_and_value):
    """A change that sets what is at the keys."""
    *keys, last, value = keys_and_value

    def change(layout):
        for key in keys:
            layout = layout[key]
        layout[last] = copy.deepcopy(value)

    return change


def drop(*keys):
    def change(layout):
        for key in keys[:-1]:
            layout = layout[key]
        del layout[keys[-1]]

    return change


def at_shard(number, change):
    return lambda layout: change(layout["leaves"][0]["shards"], number)


def repeat_shard(shards, number):
    shards.append(dict(shards[number]))


def replace_shard(shards, number):
    """One part twice, another not at all."""
    shards[number] = {**shards[number + 1]}


def overlap(shards, number):
    shards[number]["offset"][1] -= 1


def grow(shards, number):
    shards[number]["shape"][1] += 1


def deep(layout):
    for _ in range(101):
        layout["tree"] = {"list": [[0, layout["tree"]]]}


def same_place(layout):
    layout["leaves"][1]["shards"][0].update(file=0, key=layout["leaves"][0]["shards"][0]["key"])


def huge(layout):
    leaf = layout["leaves"][0]
    leaf["shape"] = [1 << 30, 1 << 10]
    leaf["shards"] = [{**leaf["shards"][0], "offset": [0, 0], "shape": [1 << 30, 1 << 10]}]


def other_dtype(layout):
    layout["leaves"][0]["dtype"] = "int32"


def other_shape(layout):
    """As many bytes, in another form."""
    layout["leaves"][2]["shape"] = [1, 2]
    layout["leaves"][2]["shards"][0].update(offset=[0, 0], shape=[1, 2])


LEAF, SHARD = ("leaves", 0), ("leaves", 0, "shards", 0)
NUMBER = ("leaves", 3, "number")
CHANGES = {
    "layout empty": lambda layout: layout.clear(),
    "extra field": put("more", 1),
    "no tree": drop("tree"),
    "no files": drop("files"),
    "leaves a record": put("leaves", {}),
    "files a string": put("files", "abc"),
    "leaf null": put("leaves", 0, None),
    "leaf number": put("leaves", 0, 7),
    "tree a string": put("tree", "w"),
    "tree a list": put("tree", [0]),
    "tree true": put("tree", {"list": [[0, True]]}),
    "tree float": put("tree", {"list": [[0, 0.0]]}),
    "leaf negative": put("tree", {"list": [[0, -1]]}),
    "leaf out of range": put("tree", "dict", 0, 1, 99),
    "leaf twice": put("tree", "dict", 1, 1, 0),
    "leaf left out": put("tree", "dict", 0, 1, None),
    "two kinds": put("tree", "list", []),
    "no kind": put("tree", {}),
    "unknown kind": put("tree", "dict", 3, 1, {"set": []}),
    "children a number": put("tree", {"dict": 3}),
    "child without key": put("tree", {"dict": [[0]]}),
    "key a list": put("tree", "dict", 0, 0, [1]),
    "key nan": put("tree", "dict", 0, 0, float("nan")),
    "key twice": put("tree", "dict", 0, 0, "c"),
    "list keys": put("tree", "dict", 3, 1, "list", 0, 0, 5),
    "list key bool": put("tree", "dict", 3, 1, "list", 0, 0, False),
    "deep": deep,
    "name a number": put(*LEAF, "name", 3),
    "dtype unknown": put(*LEAF, "dtype", "object"),
    "dtype a list": put(*LEAF, "dtype", ["float32"]),
    "dtype other": other_dtype,
    "dtype wider": put(*LEAF, "dtype", "float64"),
    "stored_as": put(*LEAF, "stored_as", "int32"),
    "stored_as missing": drop("leaves", 1, "stored_as"),
    "stored_as other": put("leaves", 1, "stored_as", "float64"),
    "weak": put(*LEAF, "weak", 1),
    "shape negative": put(*LEAF, "shape", [-6, -8]),
    "shape bool": put(*LEAF, "shape", [True, 8]),
    "shape float": put(*LEAF, "shape", [6.0, 8]),
    "shape text": put(*LEAF, "shape", "68"),
    "shape smaller": put(*LEAF, "shape", [5, 8]),
    "shape larger": put(*LEAF, "shape", [7, 8]),
    "shape empty": put(*LEAF, "shape", [0, 8]),
    "shape overflow": put(*LEAF, "shape", [1 << 62, 1 << 62]),
    "shape beyond": put(*LEAF, "shape", [10**400, 8]),
    "shape many dims": put(*LEAF, "shape", [1] * 100),
    "shape huge": huge,
    "shape other form": other_shape,
    "sharding text": put(*LEAF, "sharding", "x"),
    "sharding dims": put(*LEAF, "sharding", "spec", [["x"]]),
    "sharding axes": put(*LEAF, "sharding", "spec", [["x"], [3]]),
    "no shards": put(*LEAF, "shards", []),
    "shards null": put(*LEAF, "shards", None),
    "shard missing": drop("leaves", 0, "shards", 3),
    "shard repeated": at_shard(2, repeat_shard),
    "shard replaced": at_shard(2, replace_shard),
    "shard overlapping": at_shard(2, overlap),
    "shard too large": at_shard(2, grow),
    "shard in another's place": same_place,
    "shard without key": drop(*SHARD, "key"),
    "shard key unknown": put(*SHARD, "key", "nothing"),
    "shard key null": put(*SHARD, "key", None),
    "file negative": put(*SHARD, "file", -1),
    "file out of range": put(*SHARD, "file", 99),
    "file bool": put(*SHARD, "file", False),
    "file text": put(*SHARD, "file", "0"),
    "offset negative": put(*SHARD, "offset", [-1, 0]),
    "offset short": put(*SHARD, "offset", [0]),
    "offset float": put(*SHARD, "offset", [0.0, 0]),
    "checksum negative": put(*SHARD, "crc32", -1),
    "checksum other": put(*SHARD, "crc32", 1),
    "checksum float": put(*SHARD, "crc32", 1.5),
    "path up": put("files", 0, "name", "../secret"),
    "path absolute": put("files", 0, "name", "/etc/passwd"),
    "path below": put("files", 0, "name", f"b/{NAME}"),
    "path null": put("files", 0, "name", None),
    "path NUL": put("files", 0, "name", NAME + "\0"),
    "path newline": put("files", 0, "name", NAME + "\n"),
    "path other digits": put("files", 0, "name", NAME.replace("00000", "٠٠٠٠٠")),
    "path layout": put("files", 0, "name", "layout.json"),
    "path missing": put("files", 0, "name", NAME),
    "path twice": lambda layout: layout["files"][1].update(name=layout["files"][0]["name"]),
    "bytes other": put("files", 0, "bytes", 10),
    "bytes negative": put("files", 0, "bytes", -1),
    "bytes text": put("files", 0, "bytes", "1"),
    "number empty": put(*NUMBER, []),
    "number bare": put(*NUMBER, 7),
    "number kind": put(*NUMBER, ["eval", "1"]),
    "number text": put(*NUMBER, ["int", "seven"]),
    "number underscore": put(*NUMBER, ["int", "1_0"]),
    "number long": put(*NUMBER, ["int", "1" * 5000]),
    "number json": put(*NUMBER, ["int", 7]),
    "number parts": put(*NUMBER, ["int", "7", "8"]),
    "bool other": put(*NUMBER, ["bool", "true"]),
    "float text": put(*NUMBER, ["float", "0xzz"]),
    "float overflow": put(*NUMBER, ["float", "0x1p99999"]),
    "complex parts": put(*NUMBER, ["complex", "0x1p0"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_layout_that_lies(saved, change):
    layout = read_layout(saved)
    change(layout)
    write_layout(saved, layout)
    refused(saved)
    refused(saved, mesh=MESH)


def test_what_the_changes_start_from_can_be_loaded(saved):
    write_layout(saved, read_layout(saved))
    assert mw.load(saved)["n"] == [1, 2.5, 1j, "s", True]
    assert mw.load(saved, mesh=MESH)["w"].shape == (6, 8)


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None, [1], 2, 10**3000])
def test_versions(saved, version):
    write_layout(saved, read_layout(saved), version=version)
    refused(saved)


@pytest.mark.parametrize(
    "text",
    [b"\xff\xfe", b"[" * 10**6, b'{"a":' * 10**6, b"NaN", b"1" * 5000, b'{"format": "meshwright"}', b"null", b'"a"'],
    ids=["bytes", "lists", "records", "nan", "digits", "fields", "null", "text"],
)
def test_text_that_is_no_layout(saved, text):
    (saved / "layout.json").write_bytes(text)
    refused(saved)


def test_fields_given_twice(saved):
    text = (saved / "layout.json").read_text()
    (saved / "layout.json").write_text(text.replace('{"format"', '{"version": 1, "format"', 1))
    refused(saved)


def test_a_layout_without_end(saved, monkeypatch):
    monkeypatch.setattr(saved_layout, "MAX_JSON_BYTES", 1000)
    assert "more than 1000 bytes" in refused(saved)


def as_link(file, path):
    os.symlink(file, path)


def as_pipe(file, path):
    os.mkfifo(path)


def as_directory(file, path):
    os.mkdir(path)


def as_socket(file, path):
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.parametrize("make", [as_link, as_pipe, as_directory, as_socket])
@pytest.mark.parametrize("which", ["layout", "data"])
def test_what_is_not_a_regular_file(saved, make, which):
    name = "layout.json" if which == "layout" else read_layout(saved)["files"][0]["name"]
    moved = saved.parent / name
    os.rename(saved / name, moved)
    make(moved, saved / name)
    assert "it is not a regular file" in refused(saved)


@pytest.mark.parametrize("axis", ["", "q", "x:", "x:(", "y:(1)", "y:(0)2", "y:(-1)2", "y:(1)99", "y:(9)2", "\0"])
def test_axes_that_no_mesh_has(saved, axis):
    layout = read_layout(saved)
    layout["leaves"][0]["sharding"]["spec"][1] = [axis]
    write_layout(saved, layout)
    assert mw.load(saved)["w"].shape == (6, 8)
    with mw.set_mesh(MESH):
        assert mw.load(saved)["w"].shape == (6, 8)
    with pytest.raises(mw.MeshwrightError):
        mw.load(saved, mesh=MESH)


# Data files


def with_header(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(**changes):
    return {"v": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


ONES = np.ones(2, np.float32).tobytes()
FILES = {
    "empty": b"",
    "short": b"\1\0\0",
    "header size": (1 << 62).to_bytes(8, "little") + b"{}",
    "header zero": bytes(16),
    "header text": with_header(b"no json"),
    "header bytes": with_header(b"\xff\xff"),
    "header list": with_header([1]),
    "header deep": with_header(b"[" * 10**5),
    "header twice": with_header(b'{"v": {}, "v": {}}'),
    "tensor null": with_header({"v": None}),
    "no offsets": with_header({"v": {"dtype": "F32", "shape": [2]}}, ONES),
    "offsets text": with_header(tensor(data_offsets=["0", "8"]), ONES),
    "offsets bool": with_header(tensor(data_offsets=[False, 8]), ONES),
    "offsets reversed": with_header(tensor(data_offsets=[8, 0]), ONES),
    "offsets negative": with_header(tensor(data_offsets=[-8, 0]), ONES),
    "offsets beyond": with_header(tensor(data_offsets=[0, 1 << 40]), ONES),
    "gap": with_header(tensor(data_offsets=[4, 12]), b"abcd" + ONES),
    "more at the end": with_header(tensor(), ONES + b"more"),
    "shared bytes": with_header({**tensor(), "u": tensor()["v"]}, ONES),
    "dtype": with_header(tensor(dtype="I32"), ONES),
    "dtype list": with_header(tensor(dtype=[]), ONES),
    "shape": with_header(tensor(shape=[1, 2]), ONES),
    "shape float": with_header(tensor(shape=[2.0]), ONES),
    "size": with_header(tensor(data_offsets=[0, 4]), ONES[:4]),
    "other name": with_header({"w": tensor()["v"]}, ONES),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_a_data_file_that_lies(tmp_path, content):
    shard = {"file": 0, "key": "v", "offset": [0], "shape": [2], "crc32": zlib.crc32(ONES)}
    leaf = {"name": "", "dtype": "float32", "shape": [2], "shards": [shard]}
    good = with_header(tensor(), ONES)
    for data in (good, content):
        (tmp_path / NAME).write_bytes(data)
        write_layout(tmp_path, {"tree": 0, "leaves": [leaf], "files": [{"name": NAME, "bytes": len(data)}]})
        if data is good:
            assert np.asarray(mw.load(tmp_path)).tolist() == [1, 1]
    assert "is damaged" in refused(tmp_path)


def test_bools_that_are_neither(saved):
    layout = read_layout(saved)
    shard = layout["leaves"][2]["shards"][0]
    file = saved / layout["files"][shard["file"]]["name"]
    content = file.read_bytes()
    at = content.rindex(b"\1\0")
    file.write_bytes(content[:at] + b"\2\0" + content[at + 2 :])
    shard["crc32"] = zlib.crc32(b"\2\0")
    write_layout(saved, layout)
    assert "neither True nor False" in refused(saved)


def test_changes_at_random(saved):
    """Any part of the layout replaced by anything: what was saved, or one clear error."""
    rng = np.random.default_rng(0)
    junk = [None, True, -1, 0, 1, 2**70, 0.5, float("inf"), "", "x", "../x", [], [0], [[0, 0]], {}, {"dict": []}]
    good = read_layout(saved)
    for _ in range(400):
        layout = copy.deepcopy(good)
        node = layout
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = keys[rng.integers(len(keys))]
            if not isinstance(node[key], dict | list) or not node[key] or rng.random() < 0.15:
                break
            node = node[key]
        node[key] = copy.deepcopy(junk[rng.integers(len(junk))])
        write_layout(saved, layout)
        try:
            found = mw.load(saved)
        except StorageError:
            continue
        if "w" in found:  # and not another key
            assert np.asarray(found["w"]).tolist() == np.arange(48).reshape(6, 8).tolist()
