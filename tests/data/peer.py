"""Exchanges files with tch-amp's tests: reads a checkpoint, or writes weights.

peer.py read CHECKPOINT     prints as JSON what docs/checkpoints.md says is in it
peer.py write WEIGHTS       writes weights as a program without torch would
"""

import json
import struct
import sys
import zlib

import cbor2
import numpy
from safetensors import safe_open
from safetensors.numpy import save_file


def read(path):
    with safe_open(path, "numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}
        metadata = file.metadata()
    print(
        json.dumps(
            {
                "tensors": {
                    name: {
                        "dtype": str(array.dtype),
                        "shape": list(array.shape),
                        "bytes": array.tobytes().hex(),
                    }
                    for name, array in arrays.items()
                },
                "metadata": metadata,
                "value": repr(cbor2.loads(arrays["tch-amp/value"].tobytes())),
                "sums": [int(sum) for sum in arrays["tch-amp/checksums"].view("<u4")],
                "expected_sums": checksums(path),
            }
        )
    )


def checksums(path):
    """Those that belong to the bytes of the file, by its header."""
    with open(path, "rb") as file:
        content = file.read()
    data = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:data])
    header.pop("__metadata__")
    offsets = sorted(tensor["data_offsets"] for tensor in header.values())
    parts = [content[:data]] + [content[data + a : data + b] for a, b in offsets[:-1]]
    sums = [zlib.crc32(part) for part in parts]
    return sums + [zlib.crc32(struct.pack(f"<{len(sums)}I", *sums))]


def write(path):
    def values(*shape):
        count = numpy.prod(shape, dtype=int)
        return (numpy.arange(count) / 8 - 4).astype("float32").reshape(shape)

    save_file(
        {
            "first.weight": values(32, 16),
            "norm.weight": values(32).astype("float16"),
            "norm.bias": values(32).astype("float64"),
            "norm.running_mean": values(32),
            "norm.running_var": abs(values(32)),
            "last.weight": values(4, 32),
            "last.bias": values(4),
        },
        path,
        metadata={"origin": "numpy"},
    )


if __name__ == "__main__":
    {"read": read, "write": write}[sys.argv[1]](sys.argv[2])
