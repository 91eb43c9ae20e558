"""An archive as the reference parses it, to compare with another one whatever the order of its data is."""

import json

import safetensors


def parsed(path):
    """{name: (dtype, shape, bytes)}, and the metadata or None."""
    content = path.read_bytes()
    tensors = {name: (row["dtype"], row["shape"], bytes(row["data"])) for name, row in safetensors.deserialize(content)}
    header = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
    return tensors, header.get("__metadata__")
