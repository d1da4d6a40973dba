"""What is refused by content, however it is named, packed or compressed; and what must pass."""

import bz2
import collections
import gzip
import io
import json
import lzma
import os
import pickle
import pickletools
import socket
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import ArtifactError
from serving.registry.contents import check_file


class Reduced:
    """Pickles to a call, as an exploit does."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.path.join, ("a", "b"))


Wrap = Callable[[bytes], bytes]


def zipped(data: bytes, name: str = "archive/data.pkl", method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("archive/version", "3\n")
        archive.writestr(name, data)
    return buffer.getvalue()


def deflated(data: bytes) -> bytes:
    return zipped(data, method=zipfile.ZIP_DEFLATED)


def tarred(data: bytes, mode: str = "w", member: str = "weights/data.bin") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        info = tarfile.TarInfo(member)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def old_tarred(data: bytes) -> bytes:
    """As tar wrote before it had a magic word."""
    packed = bytearray(tarred(data))
    packed[257:265] = bytes(8)
    packed[148:156] = b" " * 8
    packed[148:156] = b"%06o\0 " % sum(packed[:512])
    return bytes(packed)


def lzma_alone(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_ALONE)


WRAPPERS: dict[str, Wrap] = {
    "bare": lambda data: data,
    "zip": zipped,
    "deflated zip": deflated,
    "zip in zip": lambda data: zipped(zipped(data), "inner.zip"),
    "zip behind a script": lambda data: b"#!/bin/sh\nexit 1\n" + zipped(data),
    "tar": tarred,
    "old tar": old_tarred,
    "tar.gz": lambda data: tarred(data, "w:gz"),
    "tar.xz": lambda data: tarred(data, "w:xz"),
    "zip in tar.bz2": lambda data: tarred(zipped(data), "w:bz2"),
    "tar in zip": lambda data: zipped(tarred(data), "x.tar"),
    "gzip": gzip.compress,
    "two gzip members": lambda data: gzip.compress(data[:1]) + gzip.compress(data[1:]),
    "zlib": zlib.compress,
    "zlib level 0": lambda data: zlib.compress(data, 0),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lzma_alone,
    "gzip in bzip2": lambda data: bz2.compress(gzip.compress(data)),
    "zlib in zip": lambda data: zipped(zlib.compress(data)),
}
PICKLED: dict[str, Any] = {
    "call": Reduced(),
    "none": None,
    "true": True,
    "int": 12345678901234567890,
    "float": 1.5,
    "text": "two\nlines ü",
    "bytes": b"\x00\xff" * 50,
    "list": [1, "a", None, 2.5],
    "dict": {"weights": [0.1] * 20, "bias": (1, 2)},
    "set": {1, 2},
    "global": collections.OrderedDict,
    "object": collections.OrderedDict(a=1),
    "array": np.arange(6.0),
    "large": "x" * 200_000,
    "shared": [[1]] * 3,
}


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        check_file(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def passes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    check_file(path)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", PICKLED)
def test_a_pickle_of_anything_is_refused(tmp_path: Path, value: str, protocol: int) -> None:
    data = pickle.dumps(PICKLED[value], protocol)
    message = refused(tmp_path / "model.onnx", data)
    assert "runs whatever code it names" in message
    assert "safetensors" in message
    if protocol:
        refused(tmp_path / "model.onnx", pickletools.optimize(data))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_pickle_in_a_wrapper_is_refused(tmp_path: Path, wrapper: str, protocol: int) -> None:
    data = pickle.dumps({"w": [Reduced(), b"\x01" * 10]}, protocol)
    message = refused(tmp_path / "model.safetensors", WRAPPERS[wrapper](data))
    assert "pickle" in message


@settings(max_examples=60)
@given(
    content=st.binary(max_size=300) | st.text(max_size=100) | st.lists(st.floats(), max_size=20),
    protocol=st.integers(0, 5),
    wrapper=st.sampled_from(sorted(WRAPPERS)),
)
def test_random_content_is_refused_in_every_protocol_and_wrapper(
    tmp_path_factory: pytest.TempPathFactory, content: object, protocol: int, wrapper: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "random"
    refused(path, WRAPPERS[wrapper](pickle.dumps(content, protocol)))


LONG = pickle.dumps([Reduced(), os.urandom(9000)])
EXPLOITS = {
    "call, then garbage": b"cos\nsystem\n(S'true'\ntR\xff\xff\xff",
    "call after a harmless pickle": b"I1\n.cos\nsystem\n(S'true'\ntR.",
    "call after a number only C reads": b"I0x10\n0cos\nsystem\n(S'true'\ntR.",
    "call after a discarded mark": b"(0cos\nsystem\n(S'true'\ntR.",
    "call by INST": b"(S'true'\nios\nsystem\n.",
    "call by OBJ": b"(cos\nsystem\nS'true'\no.",
    "call after thousands of lines": b"I1\n0" * 3000 + b"cos\nsystem\n(S'true'\ntR.",
    "call after a long line": b"V" + b"x" * 100_000 + b"\n0cos\nsystem\n(S'true'\ntR.",
    "call after a late header": b"N0\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "call through the memo": b"cos\nsystem\np7\n0S'true'\n\x85p8\n0g7\ng8\nR.",
    "binary, broken at the end": pickle.dumps(Reduced(), 4)[:-1] + b"\xfe",
    "binary, cut short": pickle.dumps({"a": "x" * 1000}, 4)[:-300],
    "binary, with data after it": pickle.dumps([1], 2) + b"\x00" * 100,
    "old joblib": b"ZF0x2a               " + zlib.compress(pickle.dumps([1])),
    "broken zlib": zlib.compress(LONG)[:-2000] + b"\xff" * 2000,
    "cut zlib": zlib.compress(LONG)[:-2000],
    "cut gzip": gzip.compress(LONG)[:-2000],
}  # fmt: skip


@pytest.mark.parametrize("exploit", EXPLOITS)
def test_a_stream_that_calls_before_it_breaks_is_refused(tmp_path: Path, exploit: str) -> None:
    refused(tmp_path / "labels.txt", EXPLOITS[exploit])


SNIPPETS = [
    *(
        b"cos\nsystem\n",
        b"ios\nsystem\n",
        b"\x8c\x02os",
        b"\x93",
        b"R",
        b"b",
        b"o",
        b"\x81",
        b"\x92",
    ),
    *(b"(", b"t", b"l", b"d", b"0", b"1", b"2", b"N", b".", b")", b"]", b"}", b"\x8f", b"\x91"),
    *(b"a", b"e", b"s", b"u", b"\x90", b"\x85", b"\x86", b"\x87", b"I1\n", b"I0x1\n", b"L1L\n"),
    *(b"p1\n", b"g1\n", b"q\x01", b"h\x01", b"\x94", b"h\x00", b"Vx\n", b"S'x'\n", b"F1\n"),
    *(b"\x80\x04", b"\x80\x02", b"\x80\x07", b"Px\n", b"Q", b"\x82\x01", b"K\x01", b"X\1\0\0\0a"),
]


@settings(max_examples=1500)
@given(st.lists(st.sampled_from(SNIPPETS), max_size=14).map(b"".join))
def test_every_stream_that_python_calls_something_for_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    called = []

    class Watched(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            return lambda *arguments: called.append((module, name))

        def persistent_load(self, pid: Any, /) -> Any:
            return None

    stream = io.BytesIO(data)
    try:
        while stream.tell() < len(data):
            Watched(stream).load()
    except Exception:  # the point is what it did before
        stream.close()
    if called:
        refused(tmp_path_factory.getbasetemp() / "stream", data)


def torch_legacy() -> bytes:
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    return magic + pickle.dumps({"little_endian": True}, 2) + pickle.dumps(Reduced(), 2) + bytes(64)


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        torch_legacy(),
        npy(np.array([{"a": 1}, None], dtype=object)),
        npy(np.zeros(2, dtype=[("a", "<f4"), ("b", [("c", "O")])])),
        npz(good=np.arange(3), bad=np.array([None])),
        b"\x93NUMPY\x01\x00\x10\x00{'descr': 'O,i4'}",
        b"\x93NUMPY\x02\x00\x10\x00\x00\x00{'descr':'object'",
        b"\x93NUMPY\x01\x00\xff\xff{",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        b"\x93NUMPY\x01\x00\x06\x00((((((",
        b"\x93NUMPY",
    ],
)
def test_objects_in_arrays_and_old_checkpoints_are_refused(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path / "model.bin", data)


def safetensors(header_bytes: int) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", header_bytes) + header.ljust(header_bytes) + b"\0\0\x80\x3f"


TEXTS = [
    *("", "\n", ".", "..", "hello", "(.", "))))", "}]", "N", "I1", "V\n", "(((((", "0" * 50),
    *("cat\ndog\nbird\n", "cat\ndog\nperson\n.\n", "c\n", "class Model:\n    pass\n"),
    *("# Title\n\nA paragraph.\n", "- a\n- b\n", "Name,Value\na,1\n", "I am a list\nof words\n"),
    *(
        "Sentences start with S'.\n",
        "'S'\n",
        "(in the beginning\nthere was\nnothing\n",
        "%PDF-1.7\n",
    ),
    *(
        "Very short\n.gitignore\n",
        "Xylophone music",
        "The quick brown fox",
        "Germany\n",
        "N.B. this",
    ),
    *("x^2 + y^2 = z^2", "x^" + "abc " * 200, "x\x01y", "hello\tworld", "(a, b)", "]\n[\n"),
    *(
        '{"a": [1, 2]}',
        "[1, 2]",
        "<xml/>",
        "tree\nversion=v3\n",
        "PK is short for",
        "BZh9 is a header",
    ),
    *(
        "NNNNNNNNNN" * 500,
        "import os\nprint(1)\n",
        "-----BEGIN PUBLIC KEY-----\n",
        "Persons\nof note\n",
    ),
    *("\ufeffwith a byte order mark", "ünïcödé\n", "\x80\x02 in text", "pad [PAD]\nunk [UNK]\n"),
]
GOOD_BYTES = {
    **{f"safetensors, header {n}": safetensors(n) for n in (128, 384, 640, 1152, 1408, 96)},
    "onnx": b"\x08\x0a\x12\x07pytorch\x1a\x052.1.0:\x10\n\x06model",
    "gguf": b"GGUF\x03\0\0\0" + struct.pack("<QQQ", 291, 24, 20) + b"general.architecture",
    "tensorrt plan": b"ftrt\x00\x00\x00\x00\x01\x02" + bytes(range(256)),
    "tflite": b"\x1c\x00\x00\x00TFL3" + bytes(64),
    "zeros": bytes(2000),
    "npy": npy(np.arange(12, dtype="<f4").reshape(3, 4)),
    "structured npy": npy(np.zeros(2, dtype=[("a", "<f4", (2,)), ("b", "S3"), ("c", "<M8[ns]")])),
    "npz": npz(a=np.arange(5), b=np.ones((3, 3))),
    "zip of text": zipped(b"hello", "readme.txt"),
    "empty zip": b"PK\x05\x06" + bytes(18),
    "tar of safetensors": tarred(safetensors(640)),
    "tar.gz of onnx": tarred(b"\x08\x0a\x12\x07pytorch", "w:gz"),
    "gzip of text": gzip.compress(b"hello\n" * 100),
    "padded gzip of text": gzip.compress(b"hello\n" * 100) + bytes(512),
    "zlib of text": zlib.compress(b"hello\n" * 100),
    "xz of text": lzma.compress(b"hello\n" * 100),
    "bzip2 of text": bz2.compress(b"hello\n" * 100),
    "lone header": b"\x80\x04",
    "unknown protocol": b"\x80\x09N.",
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:20]))
def test_plain_text_passes(tmp_path: Path, text: str) -> None:
    passes(tmp_path / "labels.pkl", text.encode())


@pytest.mark.parametrize("kind", GOOD_BYTES)
def test_formats_without_code_pass(tmp_path: Path, kind: str) -> None:
    passes(tmp_path / "model.pt", GOOD_BYTES[kind])


def is_text_pickle(data: bytes) -> bool:
    """Whether Python itself would take the text for a pickle, with nothing after it."""
    stream = io.BytesIO(data)
    try:
        while stream.tell() < len(data):
            pickle.Unpickler(stream).load()  # noqa: S301 (of text made here)
    except Exception:
        return False
    return bool(data)


@settings(max_examples=300)
@given(st.text(max_size=200) | st.text(alphabet="NIVS(.)}]abcdlpt0\n'1 ", max_size=30))
def test_arbitrary_text_passes_unless_python_takes_it_for_a_pickle(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    data = text.encode("utf-8", "surrogatepass")
    path = tmp_path_factory.getbasetemp() / "text"
    if is_text_pickle(data):
        refused(path, data)
        return
    path.write_bytes(data)
    try:
        check_file(path)
    except ArtifactError:
        # Words that name something and call it: harmful before Python finds a fault in them.
        assert any(call in text for call in "Rbiso")


def test_the_shipped_onnx_model_passes() -> None:
    import magika

    models = list(Path(magika.__file__).parent.rglob("*.onnx"))
    assert models
    for model in models:
        check_file(model)


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("link", "dangling"):
        with pytest.raises(ArtifactError, match="symbolic link"):
            check_file(tmp_path / name)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        for path in (
            tmp_path,
            tmp_path / "pipe",
            tmp_path / "s",
            tmp_path / "absent",
            Path("/dev/null"),
        ):
            with pytest.raises(ArtifactError):
                check_file(path)


def bomb_zip(size: int) -> bytes:
    return deflated(bytes(size))


def nested(data: bytes, wrap: Wrap, depth: int) -> bytes:
    for _ in range(depth):
        data = wrap(data)
    return data


@pytest.mark.parametrize(
    "data",
    [
        bomb_zip(50_000_000),
        gzip.compress(bytes(50_000_000)),
        zlib.compress(bytes(50_000_000)),
        bz2.compress(bytes(50_000_000)),
        lzma.compress(bytes(50_000_000)),
        nested(b"hello", gzip.compress, 8),
        nested(b"hello", zipped, 8),
        zipped(gzip.compress(bytes(50_000_000))),
    ],
    ids=["zip", "gzip", "zlib", "bzip2", "xz", "deep gzip", "deep zip", "gzip in zip"],
)
def test_a_bomb_is_refused(tmp_path: Path, data: bytes) -> None:
    assert "bomb" in refused(tmp_path / "model.bin", data)


def overlapping_zip() -> bytes:
    """Many directory entries that all unpack the same megabyte."""
    with zipfile.ZipFile(io.BytesIO(deflated(bytes(1_000_000)))) as archive:
        infos, data = archive.infolist(), archive.fp
        assert data is not None
        data.seek(0)
        packed = data.read()
    directory_at = packed.index(b"PK\x01\x02", packed.index(b"data.pkl"))
    entry_at = packed.index(b"PK\x01\x02", directory_at + 1)
    end_at = packed.index(b"PK\x05\x06")
    entries = packed[entry_at:end_at] * 2000
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2000, 2000, len(entries), directory_at, 0)
    assert len(infos) == 2
    return packed[:directory_at] + entries + end


def test_a_zip_whose_members_overlap_is_refused(tmp_path: Path) -> None:
    assert "bomb" in refused(tmp_path / "model.zip", overlapping_zip())


@pytest.mark.parametrize("member", ["../x", "/etc/passwd", "a/../../x", "..\\x", "C:\\x"])
def test_a_member_that_climbs_is_refused(tmp_path: Path, member: str) -> None:
    assert repr(member) in refused(tmp_path / "m.zip", zipped(b"x", member))
    assert repr(member) in refused(tmp_path / "m.tar", tarred(b"x", member=member))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_a_tar_member_that_is_no_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("weights")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    assert "link or a device" in refused(tmp_path / "m.tar", buffer.getvalue())


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("weights")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    assert "symbolic link" in refused(tmp_path / "m.zip", buffer.getvalue())


@pytest.mark.parametrize(
    "data",
    [
        zipped(b"hello" * 100).replace(b"hello", b"hallo", 1),
        zipped(b"hello")[:-30],
        b"PK\x03\x04" + os.urandom(100),
        gzip.compress(b"hello" * 1000)[:-4],
        b"\x1f\x8b\x08" + bytes(30),
        lzma.compress(os.urandom(5000))[:-100],
        b"\x28\xb5\x2f\xfd" + bytes(20),
        b"\x04\x22\x4d\x18" + bytes(20),
    ],
    ids=["bad sum", "cut zip", "no zip", "cut gzip", "no gzip", "cut xz", "zstd", "lz4"],
)
def test_what_cannot_be_looked_into_is_refused(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path / "model.bin", data)


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    data = bytearray(zipped(b"hello"))
    for start in (
        data.index(b"PK\x01\x02"),
        data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1),
    ):
        data[start + 8] |= 1
    assert "encrypted" in refused(tmp_path / "model.zip", bytes(data))
