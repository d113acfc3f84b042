#!/usr/bin/env python3
"""qkvshare unpack: the arrays, read by Python's own modules, and by NumPy where it is installed."""

import ast
import json
import os
import re
import struct
import zipfile

from cli_support import (MISSING, REFUSED, USAGE, DOCUMENT, CliTest, folder, main, path, setUpModule)

try:
    import numpy
except ImportError:
    numpy = None

FORMATS = {"<f2": "e", "<f4": "f", "<i4": "i", "|u1": "B", "|i1": "b"}


def read_npz(name):
    """{array: (dtype, shape, values)}; zipfile checks the CRC-32 of each."""
    arrays = {}
    with zipfile.ZipFile(name) as archive:
        for entry in archive.namelist():
            data = archive.read(entry)
            assert data[:8] == b"\x93NUMPY\x01\0", data[:8]
            start = 10 + struct.unpack("<H", data[8:10])[0]
            assert start % 64 == 0
            header = ast.literal_eval(data[10:start].decode())
            assert header["fortran_order"] is False
            count = (len(data) - start) // struct.calcsize(FORMATS[header["descr"]])
            values = struct.unpack(f"<{count}{FORMATS[header['descr']]}", data[start:])
            arrays[entry.removesuffix(".npy")] = (header["descr"], header["shape"], values)
    return arrays


class UnpackTest(CliTest):
    def test_facts(self):
        self.succeed("unpack", path("doc4.card"), "-o", path("doc4.npz"))
        self.assertEqual(os.stat(path("doc4.npz")).st_mode & 0o777, 0o600)
        arrays = read_npz(path("doc4.npz"))
        info = self.report("info", path("doc4.card"))
        tokens = info["tokens"]
        self.assertEqual(list(arrays), ["token_ids", "positions", "level_of_token", "levels", "layer_adjustments",
                                        "info", "layer0_keys", "layer0_values", "layer1_keys", "layer1_values"])
        self.assertEqual(arrays["positions"], ("<i4", (tokens,), tuple(range(tokens))))
        self.assertEqual(arrays["token_ids"][:2], ("<i4", (tokens,)))
        levels = [(level["key_bits"], level["value_bits"]) for level in info["levels"]]
        self.assertEqual(arrays["levels"], ("|u1", (len(levels), 2), tuple(sum(levels, ()))))
        self.assertEqual(arrays["level_of_token"][2].count(levels.index((16, 16))), 4)
        text = json.loads(bytes(arrays["info"][2]))
        self.assertEqual((text["model_name"], text["segments"]), (info["model_name"], info["segments"]))
        for name in ("layer0_keys", "layer1_values"):
            self.assertEqual(arrays[name][:2], ("<f2", (tokens, info["kv_heads"], info["key_dim"])))

    def test_rows_of_an_exact_card_are_those_of_the_cache(self):
        # llama.cpp's own state of the same tokens: after the cells, layer by layer, type, row bytes and rows; K, then V.
        self.succeed("pack", "-f", path("doc.txt"), "--bits", "16", "-o", path("x.card"),
                     "--state-output", path("x.state"))
        self.succeed("unpack", path("x.card"), "-o", path("x.npz"))
        arrays = read_npz(path("x.npz"))
        state = (folder / "x.state").read_bytes()
        tokens, heads, dim = arrays["layer0_keys"][1]
        row_bytes = heads * dim * 2
        at = len(state)
        ends = []
        for name in ("layer1_values", "layer0_values"):
            at -= tokens * row_bytes
            ends.append((name, at))
            at -= 12
        for name in ("layer1_keys", "layer0_keys"):
            at -= tokens * row_bytes
            ends.append((name, at))
            at -= 12
        for name, start in ends:
            rows = struct.unpack(f"<{tokens * heads * dim}e", state[start:start + tokens * row_bytes])
            self.assertEqual(arrays[name][2], rows, name)
        # Over a file of the same kind, as float32: the same values.
        report = self.report("unpack", path("x.card"), "-o", path("x.npz"), "--float32")
        self.assertEqual(report, {"output": path("x.npz"), "tokens": tokens, "layers": 2, "dtype": "float32"})
        wide = read_npz(path("x.npz"))
        self.assertEqual(wide["layer1_keys"], ("<f4", (tokens, heads, dim), arrays["layer1_keys"][2]))

    def test_rows_of_a_narrow_card_are_near(self):
        for bits in ("4", "16"):
            self.succeed("unpack", path(f"doc{bits}.card"), "-o", path(f"near{bits}.npz"))
        narrow, exact = read_npz(path("near4.npz")), read_npz(path("near16.npz"))
        for name in ("layer0_keys", "layer1_values"):
            error = sum((a - b) ** 2 for a, b in zip(narrow[name][2], exact[name][2]))
            energy = sum(b ** 2 for b in exact[name][2])
            self.assertLess(error, 0.03 * energy, name)  # 4 bits
            self.assertGreater(error, 0, name)

    def test_layers(self):
        for layers, wanted in (("1", [1]), ("0-1", [0, 1]), ("1,0,1-1", [0, 1])):
            self.succeed("unpack", path("doc4.card"), "-o", path("l.npz"), "--layers", layers)
            names = [name for name in read_npz(path("l.npz")) if re.match(r"layer\d", name)]
            self.assertEqual(names, [f"layer{layer}_{side}" for layer in wanted for side in ("keys", "values")])
        for layers in ("2", "0-2", "1-0", "x", "1,", ",1", "0 1", "-1", "99999999999999999999"):
            self.fail_with(USAGE, "unpack", path("doc4.card"), "-o", path("no.npz"), f"--layers={layers}",
                           says=["--layers", "0 to 1"])

    def test_wrong_files(self):
        self.fail_with(USAGE, "unpack", path("doc4.card"), says="--output")
        self.fail_with(MISSING, "unpack", path("none.card"), "-o", path("no.npz"), says="none.card")
        self.fail_with(REFUSED, "unpack", path("a.gguf"), "-o", path("no.npz"))
        self.fail_with(MISSING, "unpack", path("doc4.card"), "-o", path("none/no.npz"), says="none/no.npz")
        self.fail_with(USAGE, "unpack", path("doc4.card"), "-o", path("doc4.card"), says="an input")
        self.fail_with(USAGE, "unpack", path("doc4.card"), "-o", path("doc.txt"), says="not an .npz file")
        self.assertEqual((folder / "doc.txt").read_text(encoding="utf-8"), DOCUMENT)

    def test_numpy_reads_it(self):
        if numpy is None:
            self.skipTest("NumPy is not installed")
        self.succeed("unpack", path("doc4.card"), "-o", path("n.npz"))
        arrays = read_npz(path("n.npz"))
        with numpy.load(path("n.npz")) as loaded:
            self.assertEqual(set(loaded), set(arrays))
            for name, (dtype, shape, values) in arrays.items():
                self.assertEqual((loaded[name].dtype.str, loaded[name].shape), (dtype, shape))
                self.assertEqual(tuple(loaded[name].ravel().tolist()), values)


if __name__ == "__main__":
    main()
